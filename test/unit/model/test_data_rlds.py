"""Import of RLDS episodes given as dictionaries: fields, rates and commands of each dataset, memory use."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.recordings import FPS, H, N, W, table_camera, waving, yam

from kinema4d_model.data.check import check_dataset
from kinema4d_model.data.dataset_folder import DatasetFolder
from kinema4d_model.data.importers.build import build_episode
from kinema4d_model.data.importers.collect import collect
from kinema4d_model.data.importers.rlds import UNKNOWN, RldsEpisode, RldsSource, fields_of, open_rlds, steps_recording
from kinema4d_model.data.importers.run import ImportOptions, rlds_items
from kinema4d_model.data.shards import read_episode
from kinema4d_ros.core.errors import DataError, ErrorCode, FileFormatError, SetupError
from kinema4d_ros.core.transforms import from_quaternion, to_rpy
from kinema4d_ros.io.joint_match import JointOptions
from kinema4d_ros.robot import Robot

SEVEN = """<robot name="seven"><link name="base"/>{}</robot>"""
JOINT = """<joint name="panda_{i}" type="revolute"><parent link="{parent}"/><child link="l{i}"/><origin xyz="0 0 0.1"/>
<axis xyz="0 0 1"/><limit lower="-3" upper="3" velocity="2" effort="9"/></joint><link name="l{i}"><visual><geometry>
<box size="0.05 0.05 0.1"/></geometry></visual></link>"""


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Robot]:
    """Return an arm with seven joints, as a Franka, and no gripper."""
    path = tmp_path_factory.mktemp("urdf") / "seven.urdf"
    parents = ["base", *(f"l{i}" for i in range(1, 7))]
    path.write_text(SEVEN.format("".join(JOINT.format(i=i + 1, parent=p) for i, p in enumerate(parents))))
    return str(path), Robot.load(str(path))


def droid_steps(count: int = N) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows = np.linspace(0, 1, count)[:, None] * np.linspace(0.1, 0.7, 7)
    return [
        {
            "observation": {
                "exterior_image_1_left": waving().images[i],
                "joint_position": row,
                "gripper_position": np.array([0.25]),
                "cartesian_position": np.array([0.4, 0.1, 0.3, 0.1, -0.2, 1.0]),
            },
            "action": rng.normal(size=7),
            "action_dict": {"joint_position": row + 0.01, "gripper_position": np.array([0.5])},
            "language_instruction": b"put the cup away",
        }
        for i, row in enumerate(rows)
    ]


def episode(steps: Any, key: str = "x-000000", **metadata: Any) -> RldsEpisode:
    return RldsEpisode(key, metadata, steps)


def test_droid_joints_need_an_arm_with_the_same_number_of_joints(seven: tuple[str, Robot]) -> None:
    fields = fields_of("droid_100")
    path = "gs://d/r2d2-data-full/ILIAD/failure/2023-05-01/Mon_10:00/trajectory.h5"
    found = steps_recording(episode(droid_steps(), file_path=path), fields, 15.0, seven, table_camera())
    assert found.success is False
    assert fields.scene_of(path) == "ILIAD/2023-05-01"
    assert found.joints is not None
    assert found.actions is not None
    assert found.image_times[1] == pytest.approx(1 / 15)
    assert found.actions.positions - found.joints.positions == pytest.approx(0.01)
    made = build_episode(found, frames=5, width=48, height=32)
    assert made.details["condition"] == "commanded"
    assert (made.task, made.robot) == ("put the cup away", seven[0])
    assert made.condition_ids is not None

    assert any("taken as" in note for note in found.details["notes"]), "joints without names are taken in order"

    other = steps_recording(episode(droid_steps()), fields, 15.0, None, table_camera())
    assert other.joints is None
    assert other.actions is None
    assert other.robot is None
    assert "Franka" in other.details["joints"]
    made = build_episode(other, frames=5, width=48, height=32)
    assert {"joints", "actions", "condition"} <= set(made.missing)
    assert made.details["tool"]["opening"] == pytest.approx([0.75] * 5), "DROID's 0 is open"

    with pytest.raises(FileFormatError, match=r"no values for joint1.*the recording has 0, 1, 2, 3, 4, 5, 6") as caught:
        steps_recording(episode(droid_steps()), fields, 15.0, yam(), table_camera())
    assert caught.value.code == ErrorCode.UNKNOWN_JOINT
    six = JointOptions({**{str(i): f"joint{i + 1}" for i in range(6)}, "6": ""})
    mapped = steps_recording(episode(droid_steps()), fields, 15.0, yam(), table_camera(), options=six)
    assert mapped.joints is not None
    assert mapped.joints.names[:6] == tuple(f"joint{i}" for i in range(1, 7))
    assert any("0 = open, 1 = closed (known of this dataset)" in note for note in mapped.details["notes"])


def test_bridge_states_are_poses_of_the_tool_not_joints() -> None:
    state = np.array([0.3, -0.1, 0.2, 0.4, -0.3, 0.2, 0.8])
    steps = [
        {
            "observation": {"image_0": waving().images[i], "state": state + 0.001 * i},
            "action": np.array([0.01, 0, 0, 0, 0, 0.1, 1.0]),
            "language_instruction": b"open the pot",
        }
        for i in range(N)
    ]
    fields = fields_of("bridge_dataset")
    assert fields.rate_hz == 5.0
    path = "/nfs/x/bridge_data_v2/deepthought_folding_table/stack_blocks/19/train/out.npy"
    assert fields.scene_of(path) == "deepthought_folding_table"
    assert fields.scene_of("/x/bridge_data_v1/berkeley/toykitchen2/lift_bowl/out.npy") == "toykitchen2"
    for robot in (yam(), None):
        found = steps_recording(episode(steps), fields, fields.rate_hz, robot, table_camera())
        assert found.joints is None
        made = build_episode(found, frames=5, width=48, height=32)
        assert {"joints", "actions", "condition"} <= set(made.missing)
        row = np.array(made.details["tool"]["base_T_tool_xyz_xyzw"][0])
        pose = from_quaternion(row[3:], row[:3])
        assert pose[:3, 3] == pytest.approx(state[:3])
        assert to_rpy(pose) == pytest.approx(state[3:6])
        assert made.details["tool"]["opening"][0] == pytest.approx(0.8)
        assert made.details["commands"]["action"][2] == pytest.approx([0.01, 0, 0, 0, 0, 0.1, 1.0])


def test_rt_1_and_libero_have_their_own_fields() -> None:
    rt1 = fields_of("fractal20220817_data")
    steps = [
        {
            "observation": {
                "image": waving().images[i],
                "base_pose_tool_reached": np.array([0.5, 0, 0.8, 0, 0, 0.6, 0.8]),
                "gripper_closed": np.array([1.0]),
                "natural_language_instruction": b"pick the can",
            },
            "action": {"world_vector": np.array([0.1, 0, 0]), "gripper_closedness_action": np.array([1.0])},
        }
        for i in range(N)
    ]
    made = build_episode(steps_recording(episode(steps), rt1, rt1.rate_hz), frames=5, width=48, height=32)
    assert rt1.rate_hz == 3.0
    assert made.details["tool"]["base_T_tool_xyz_xyzw"][0] == pytest.approx([0.5, 0, 0.8, 0, 0, 0.6, 0.8])
    assert made.details["tool"]["opening"] == [0.0] * 5
    assert made.details["commands"]["action/world_vector"][0] == [0.1, 0, 0]
    assert made.task == "pick the can"
    libero = fields_of("libero_10_no_noops")
    assert libero.scene_of("/x/KITCHEN_SCENE3_turn_on_the_stove_demo.hdf5") == "KITCHEN_SCENE3_turn_on_the_stove"
    assert libero.opening(0.02) == pytest.approx(0.5)
    assert fields_of("somebody_elses") is UNKNOWN


def test_an_unknown_dataset_needs_a_rate_and_a_robot() -> None:
    joints = waving().joints
    assert joints is not None
    steps = [
        {"observation": {"image": i, "joint_position": q, "state": q}, "language_instruction": b"wave"}
        for i, q in zip(waving().images, joints.positions, strict=True)
    ]
    source = RldsSource("mine", 1, lambda: iter([{"steps": steps}]))
    with pytest.raises(DataError, match="--rate"):
        source.rate_hz(None)
    assert source.rate_hz(FPS) == FPS
    with pytest.raises(FileFormatError, match="--gripper-range"):
        steps_recording(next(iter(source)), source.fields, FPS, yam(), table_camera())
    hand = yam()[1].gripper
    assert hand is not None
    scale = JointOptions(gripper_range=(hand.open, hand.closed))
    found = steps_recording(next(iter(source)), source.fields, FPS, yam(), table_camera(), options=scale)
    assert found.joints is not None
    assert found.joints.positions == pytest.approx(joints.positions)
    assert build_episode(found, frames=5, width=48, height=32).details["condition"] == "measured"
    assert steps_recording(next(iter(source)), source.fields, FPS).joints is None
    for bad, what in (([{"observation": {"lidar": 1}}], "observation has"), ([], "no steps")):
        with pytest.raises(DataError, match=what):
            steps_recording(episode(bad), UNKNOWN, FPS)
    try:
        __import__("tensorflow_datasets")
    except ImportError:
        with pytest.raises(SetupError, match="tensorflow_datasets"):
            open_rlds("/nowhere")


def test_one_recording_is_in_memory_at_a_time_and_scenes_are_not_split(tmp_path: Path) -> None:
    alive: list[weakref.ref[Any]] = []
    most = 0

    class Steps(list[Any]):
        pass

    def walk() -> Iterator[dict[str, Any]]:
        nonlocal most
        for number in range(9):
            most = max(most, sum(ref() is not None for ref in alive))
            steps = Steps(droid_steps())
            steps[0]["observation"]["exterior_image_1_left"] = np.roll(waving().images[0], 3 * number, 1)
            alive.append(weakref.ref(steps))
            path = f"/d/LAB/success/2023-05-0{1 + number // 3}/t{number}/trajectory.h5"
            yield {"steps": steps, "episode_metadata": {"file_path": path.encode()}}
            del steps

    source = RldsSource("droid", 9, walk)
    options = ImportOptions(frames=5, width=W // 2, height=H // 2, val_episodes=4)
    dataset, refused = collect(rlds_items(source, options), tmp_path / "d", "droid", shard_episodes=4)
    assert refused == {}
    assert most <= 2, "the current and the previous episode, not the whole dataset"
    assert dataset.document["splits"] == {"train": 6, "val": 3}, (
        "whole scenes, at most the requested number of episodes"
    )
    scenes = {
        split: {
            read_episode(index, i).details["scene"]
            for index in DatasetFolder.open(tmp_path / "d").indices(split)
            for i in range(len(index.episodes))
        }
        for split in ("train", "val")
    }
    assert not scenes["train"] & scenes["val"]
    assert check_dataset(tmp_path / "d") == []
    with pytest.raises(DataError, match="room"):
        next(rlds_items(source, ImportOptions(frames=5, width=48, height=32, scene_key="room")))
