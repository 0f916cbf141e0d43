"""Datasets of others, written for real and imported: Robo4D-200k, LeRobot both ways, bags, RLDS steps, lifters."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from kinema4d_model.data.check import check_dataset
from kinema4d_model.data.check_episode import check_episode
from kinema4d_model.data.dataset import sample_of
from kinema4d_model.data.dataset_folder import DatasetFolder
from kinema4d_model.data.episode import Episode, load_robot
from kinema4d_model.data.errors import DataError
from kinema4d_model.data.importers.bag import bag_recording
from kinema4d_model.data.importers.collect import Item, collect, split_of
from kinema4d_model.data.importers.lerobot_in import lerobot_recording
from kinema4d_model.data.importers.lifter import CommandLifter
from kinema4d_model.data.importers.recording import Recording, Unusable, build_episode
from kinema4d_model.data.importers.rlds import rlds_recordings, steps_recording
from kinema4d_model.data.importers.robo4d import MISSING, read_robo4d, robo4d_numbers
from kinema4d_model.data.lerobot_out import VIEW, export_lerobot
from kinema4d_model.data.shards import read_episode
from kinema4d_ros.calibration import save_camera
from kinema4d_ros.camera import PinholeCamera
from kinema4d_ros.cli import main
from kinema4d_ros.errors import SetupError
from kinema4d_ros.media.video import VideoWriter
from kinema4d_ros.readers import read_trajectory
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.trajectory import JointTrajectory

N, W, H, FPS = 21, 96, 64, 10.0
STORE = get_typestore(Stores.ROS2_JAZZY)


@pytest.fixture(scope="module")
def yam() -> tuple[str, Robot]:
    return "yam", load_robot("yam")


@pytest.fixture(scope="module")
def camera() -> PinholeCamera:
    return PinholeCamera.look_at((0.95, -0.45, 0.65), (0.25, 0, 0.15), width=W, height=H, fov_y_deg=40)


@pytest.fixture(scope="module")
def motion(yam: tuple[str, Robot]) -> JointTrajectory:
    start = yam[1].home_position()
    q = start + np.linspace(0, 1, N)[:, None] * np.array([0.5, 0.2, -0.2, 0.1, 0.0, 0.0, 0.01])
    return JointTrajectory.from_positions(yam[1].joint_names, q, rate_hz=FPS)


@pytest.fixture(scope="module")
def recording(yam: tuple[str, Robot], camera: PinholeCamera, motion: JointTrajectory) -> Recording:
    drawn = render_pointmaps(yam[1], motion, camera, rgb=True, threads=1)
    assert drawn.rgb is not None
    ground = np.linspace(60, 200, W, dtype=np.uint8)[None, :, None].repeat(H, 0).repeat(3, 2)
    images = [np.where(mask[..., None], rgb, ground) for mask, rgb in zip(drawn.mask, drawn.rgb, strict=True)]
    depth = [np.where(np.isfinite(z), z, np.float32(1.4)) for z in drawn.xyz[..., 2]]
    late = JointTrajectory(motion.names, motion.times, motion.positions + 0.004)
    return Recording(
        "toy", images, motion.times, "test", joints=motion, actions=late, depth=depth, camera=camera, robot=yam,
        task="wave", instruction="wave the arm", success=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def episode(recording: Recording) -> Episode:
    return build_episode(recording, frames=9, width=W, height=H)


def test_a_complete_recording_becomes_a_sound_episode(episode: Episode, recording: Recording) -> None:
    assert check_episode(episode) == []
    assert episode.missing == ()
    assert episode.times == pytest.approx(np.linspace(0, 2.0, 9))
    assert np.array_equal(episode.rgb[-1], recording.images[-1])
    assert episode.actions is not None
    assert episode.joints is not None
    assert episode.actions - episode.joints == pytest.approx(0.004)
    drawn = episode.robot_condition()
    assert np.array_equal(drawn.link_ids, episode.condition_ids)
    # The robot's pixels, drawn from the measured joints, have the recorded depth of the arm.
    assert episode.depth_m is not None
    assert np.median(episode.depth_m[episode.robot_mask]) < 1.35


def test_gaps_are_listed_and_filters_have_reasons(recording: Recording) -> None:
    plain = replace(recording, depth=None, camera=None, actions=None, success=None)
    found = build_episode(plain, frames=9, width=48, height=32)
    assert set(found.missing) == {"depth", "camera", "condition", "outcome"}
    assert found.details["actions"].startswith("measured")
    assert check_episode(found) == []
    still = JointTrajectory(recording.joints.names, recording.joints.times, np.zeros((N, 7)))  # type: ignore[union-attr]
    grey = [np.full((H, W, 3), 90, np.uint8)] * N
    for change, reason in (
        ({"joints": still, "actions": None}, "does not move"),
        ({"images": grey}, "flat colour"),
        ({"images": recording.images[:2], "image_times": np.array([0.0, 2.0])}, "2 different pictures"),
        ({"image_times": recording.image_times + 100}, "0.00 s in common"),
    ):
        with pytest.raises(Unusable, match=reason):
            build_episode(replace(recording, **change), frames=9, width=48, height=32)  # type: ignore[arg-type]


def test_lens_distortion_is_taken_out(recording: Recording, camera: PinholeCamera) -> None:
    bent = replace(camera, distortion=(-0.2, 0.05, 0.0, 0.0))
    found = build_episode(replace(recording, camera=bent), frames=3, width=W, height=H)
    assert not found.camera.has_distortion
    assert np.array_equal(found.rgb[0], bent.rectify(recording.images[0]))


LIFTER = """
import json, sys
import numpy as np
request = json.load(open(sys.argv[1] + "/request.json"))
shape = (request["frames"], request["height"], request["width"])
depth = np.full(shape, 1.25, np.float32); depth[:, 0] = np.nan
np.save(sys.argv[2] + "/depth.npy", depth)
if request["K"] is None:
    json.dump({"K": [[50, 0, 24], [0, 50, 16], [0, 0, 1]]}, open(sys.argv[2] + "/camera.json", "w"))
"""


def test_any_command_lifts_video(recording: Recording, tmp_path: Path) -> None:
    script = tmp_path / "lift.py"
    script.write_text(LIFTER)
    lifter = CommandLifter(f"{sys.executable} {script}")
    found = build_episode(replace(recording, depth=None), frames=5, width=48, height=32, lifter=lifter)
    assert found.depth_m is not None
    assert np.isnan(found.depth_m[:, 0]).all()
    assert found.depth_m[:, 1:] == pytest.approx(1.25)
    assert "depth" not in found.missing
    unknown = build_episode(replace(recording, depth=None, camera=None), frames=5, width=48, height=32, lifter=lifter)
    assert unknown.camera.K[0, 0] == 50
    for command, message in (
        (f"{sys.executable} -c 'import sys; sys.exit(3)'", "code 3"),
        (f"{sys.executable} -c 'pass'", "no usable depth"),
        ("/no/such/program", "does not exist"),
        (f"{sys.executable} -c 'import time; time.sleep(9)'", "longer than"),
    ):
        with pytest.raises(DataError, match=message):
            CommandLifter(command, timeout_s=3.0 if "longer" not in message else 0.2).lift(found.rgb, None)
    with pytest.raises(DataError, match="empty"):
        CommandLifter(" ")


def write_mp4(path: Path, frames: Iterable[NDArray[np.uint8]]) -> None:
    pictures = list(frames)
    path.parent.mkdir(parents=True, exist_ok=True)
    with VideoWriter(path, FPS, (pictures[0].shape[1], pictures[0].shape[0]), crf=4) as video:
        for picture in pictures:
            video.write(picture)


def test_robo4d_folders_keep_what_they_have_and_say_what_they_lack(
    tmp_path: Path, recording: Recording, episode: Episode
) -> None:
    root = tmp_path / "robo4d"
    condition = episode.robot_condition()
    mask = condition.mask[..., None]
    xyz = (255 * condition.normalised().values).astype(np.uint8)
    for number in ("7", "8"):
        write_mp4(root / "videos" / f"{number}.mp4", episode.rgb // (1 if number == "7" else 2))
        write_mp4(root / "pointmap" / f"{number}.mp4", np.where(mask, xyz, 128).astype(np.uint8))
        write_mp4(root / "mask_videos" / f"{number}.mp4", np.where(mask, 180, 0).repeat(3, -1).astype(np.uint8))
        write_mp4(root / "mask_pointmap" / f"{number}.mp4", xyz)
    (root / "train_shuffled.txt").write_text("videos/7.mp4\n")
    assert dict(robo4d_numbers(root)) == {"7": "train", "8": "val"}
    found = read_robo4d(root, "7", frames=5, width=W, height=H)
    assert found.missing == MISSING
    assert check_episode(found) == []
    assert np.abs(found.rgb[0].astype(int) - episode.rgb[0]).mean() < 4
    overlap = (found.condition_ids[-1] > 0) & condition.mask[-1]  # type: ignore[index]
    assert overlap.sum() > 0.9 * condition.mask[-1].sum()
    sample = sample_of(found)
    assert sample["xyz01"].shape == (3, 5, H, W)
    assert float(sample["robot_xyz01"].max()) <= 1.0
    assert bool(sample["bounds"].isnan().all())
    out = tmp_path / "out"
    arguments = ["data", "import", "robo4d", str(root), "--out", str(out), "--frames", "5", "--width", "96"]
    assert main([*arguments, "--height", "64"]) == 0
    assert check_dataset(out) == []
    assert DatasetFolder.open(out).document["splits"] == {"train": 1, "val": 1}
    (root / "pointmap" / "8.mp4").write_bytes(b"cut off")
    with pytest.raises(DataError, match=r"8\.mp4"):
        read_robo4d(root, "8", frames=5, width=W, height=H)
    with pytest.raises(DataError, match="no videos"):
        list(robo4d_numbers(tmp_path / "empty"))


def test_lerobot_v3_goes_out_and_comes_back(
    tmp_path: Path, episode: Episode, camera: PinholeCamera, yam: tuple[str, Robot]
) -> None:
    second = replace(episode, key="second", joints=episode.joints + 0.1 * np.eye(7)[0], captions={})  # type: ignore[operator]
    folder = tmp_path / "lerobot"
    assert export_lerobot([episode, second], folder, fps=FPS) == 2
    info = json.loads((folder / "meta" / "info.json").read_text())
    assert (info["codebase_version"], info["total_frames"], info["total_tasks"]) == ("v3.0", 18, 2)
    plan = read_trajectory(folder, yam[1], episode=1)
    assert plan.for_robot(yam[1]) == pytest.approx(second.joints, abs=1e-6)
    found = lerobot_recording(folder, 1, yam, camera)
    assert (len(found.images), found.task) == (9, "wave")
    assert np.abs(found.images[4].astype(int) - second.rgb[4]).mean() < 4
    assert lerobot_recording(folder, 0, yam).instruction == "wave the arm"
    save_camera(tmp_path / "camera.yaml", camera)
    out = tmp_path / "out"
    size = ["--frames", "5", "--width", "96", "--height", "64", "--camera", str(tmp_path / "camera.yaml")]
    assert main(["data", "import", "lerobot", str(folder), "--out", str(out), "--val", "0", *size]) == 0
    assert check_dataset(out) == []
    back = read_episode(DatasetFolder.open(out).indices("train")[0], 0)
    assert back.actions is not None
    assert back.actions[0] == pytest.approx(episode.actions[0], abs=1e-6)  # type: ignore[index]
    assert main(["data", "export", str(out), "--out", str(tmp_path / "again")]) == 0
    with pytest.raises(DataError, match="no joints"):
        export_lerobot([replace(episode, joints=None)], tmp_path / "bad")
    assert not (tmp_path / "bad").exists()
    with pytest.raises(DataError, match="nothing to export"):
        export_lerobot([], tmp_path / "bad")
    with pytest.raises(DataError, match="no video"):
        lerobot_recording(folder, 0, yam, view="wrist")


def test_lerobot_v2_1_is_read(tmp_path: Path, episode: Episode, yam: tuple[str, Robot]) -> None:
    folder = tmp_path / "old"
    write_mp4(folder / "videos" / "chunk-000" / VIEW / "episode_000000.mp4", episode.rgb)
    names = list(episode.joint_names)
    feature = {"dtype": "float32", "shape": [7], "names": names}
    features = {"observation.state": feature, "action": feature, VIEW: {"dtype": "video", "shape": [H, W, 3]}}
    info = {"codebase_version": "v2.1", "fps": FPS, "total_episodes": 1, "chunks_size": 1000, "features": features}
    (folder / "meta").mkdir()
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    (folder / "meta" / "episodes.jsonl").write_text(json.dumps({"episode_index": 0, "tasks": ["tidy up"]}) + "\n")
    (folder / "data" / "chunk-000").mkdir(parents=True)
    rows = {
        "observation.state": episode.joints.tolist(),  # type: ignore[union-attr]
        "action": episode.actions.tolist(),  # type: ignore[union-attr]
        "timestamp": (np.arange(9) / FPS).tolist(),
        "episode_index": [0] * 9,
    }
    pq.write_table(pa.table(rows), folder / "data" / "chunk-000" / "episode_000000.parquet")
    found = lerobot_recording(folder, 0, yam)
    assert (len(found.images), found.task) == (9, "tidy up")
    assert found.actions is not None
    assert found.actions.for_robot(yam[1]) == pytest.approx(episode.actions)


def message(kind: str, **fields: Any) -> Any:
    return STORE.types[kind](**fields)


def header(time_s: float) -> Any:
    stamp = message("builtin_interfaces/msg/Time", sec=int(time_s), nanosec=round(time_s % 1 * 1e9))
    return message("std_msgs/msg/Header", stamp=stamp, frame_id="camera")


def image(time_s: float, pixels: NDArray[Any], encoding: str) -> Any:
    rows = np.ascontiguousarray(pixels).view(np.uint8).reshape(pixels.shape[0], -1)
    padded = np.pad(rows, ((0, 0), (0, 8)))
    return message(
        "sensor_msgs/msg/Image", header=header(time_s), height=pixels.shape[0], width=pixels.shape[1],
        encoding=encoding, is_bigendian=0, step=padded.shape[1], data=padded.ravel(),
    )  # fmt: skip


def joint_state(time_s: float, names: tuple[str, ...], q: NDArray[np.float64]) -> Any:
    empty = np.empty(0)
    return message(
        "sensor_msgs/msg/JointState", header=header(time_s), name=list(names), position=q, velocity=empty, effort=empty
    )


@pytest.mark.parametrize("compressed", [False, True])
def test_bags_of_a_real_arm_are_read(
    tmp_path: Path, recording: Recording, yam: tuple[str, Robot], camera: PinholeCamera, compressed: bool
) -> None:
    path = tmp_path / "bag"
    assert recording.joints is not None
    assert recording.actions is not None
    assert recording.depth is not None
    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        kind = "sensor_msgs/msg/CompressedImage" if compressed else "sensor_msgs/msg/Image"
        topics = {
            "/camera/color": kind, "/camera/depth": "sensor_msgs/msg/Image",
            "/joint_states": "sensor_msgs/msg/JointState", "/arm/command": "sensor_msgs/msg/JointState",
        }  # fmt: skip
        links = {name: writer.add_connection(name, kind, typestore=STORE) for name, kind in topics.items()}
        for i in range(N):
            t = 50.0 + i / FPS
            if compressed:
                jpeg = cv2.imencode(".png", recording.images[i][..., ::-1])[1].ravel()
                colour = message(kind, header=header(t), format="png", data=jpeg)
            else:
                colour = image(t, recording.images[i][..., ::-1], "bgr8")
            millimetres = np.rint(recording.depth[i] * 1000).astype(np.uint16)
            sent = {
                "/camera/color": colour,
                "/camera/depth": image(t, millimetres, "16UC1"),
                "/joint_states": joint_state(t, recording.joints.names, recording.joints.positions[i]),
                "/arm/command": joint_state(t, recording.actions.names, recording.actions.positions[i]),
            }
            for name, content in sent.items():
                # Received half a second late: the stamps count.
                writer.write(links[name], round((t + 0.5) * 1e9), STORE.serialize_cdr(content, topics[name]))
    found = bag_recording(path, yam, camera, depth_topic="/camera/depth", task="wave", success=True)
    assert found.details["actions_topic"] == "/arm/command"
    assert all(np.array_equal(a, b) for a, b in zip(found.images, recording.images, strict=True))
    made = build_episode(found, frames=9, width=W, height=H)
    assert check_episode(made) == []
    assert made.actions - made.joints == pytest.approx(0.004)  # type: ignore[operator]
    assert made.depth_m == pytest.approx(np.stack([recording.depth[i] for i in np.arange(9) * 20 // 8]), abs=2e-3)
    with pytest.raises(DataError, match="/nowhere"):
        bag_recording(path, yam, camera, image_topic="/nowhere")


def test_broken_bags_are_named(tmp_path: Path, yam: tuple[str, Robot]) -> None:
    path = tmp_path / "cut.mcap"
    path.write_bytes(b"\x89MCAP0\r\nnothing more")
    with pytest.raises(DataError, match=r"cut\.mcap"):
        bag_recording(path, yam, None)


def test_rlds_steps_are_understood_and_the_missing_package_is_named(
    recording: Recording, yam: tuple[str, Robot], camera: PinholeCamera
) -> None:
    assert recording.joints is not None
    steps = [
        {"observation": {"image": i, "joint_position": q}, "action": q, "language_instruction": b"wave"}
        for i, q in zip(recording.images, recording.joints.positions, strict=True)
    ]
    found = build_episode(steps_recording(steps, "rlds-0", FPS, yam, camera), frames=5, width=48, height=32)
    assert found.task == "wave"
    assert found.joints is not None
    assert found.condition_ids is not None
    with pytest.raises(DataError, match="observation has"):
        steps_recording([{"observation": {"lidar": 1}}], "rlds-1", FPS)
    try:
        __import__("tensorflow_datasets")
    except ImportError:
        with pytest.raises(SetupError, match="tensorflow_datasets"):
            next(rlds_recordings("/nowhere", rate_hz=5.0))


def test_collecting_keeps_splits_apart_counts_refusals_and_goes_on(tmp_path: Path, episode: Episode) -> None:
    loaded: list[str] = []

    def item(name: str) -> Item:
        def load() -> Episode:
            loaded.append(name)
            if name == "bad":
                raise Unusable("too dark")
            return replace(episode, key=name)

        return Item(name, split_of(name, 0.5), load)

    names = [f"n{i}" for i in range(6)] + ["bad"]
    dataset, refused = collect(map(item, names), tmp_path / "d", "toy", shard_episodes=2)
    assert refused == {"bad": "too dark"}
    assert sum(dataset.document["splits"].values()) == 6
    assert {split_of(n, 0.5) for n in names} == {"train", "val"}
    first = len(loaded)
    collect(map(item, names), tmp_path / "d", "toy", shard_episodes=2)
    assert set(loaded[first:]) <= {"bad"}, "shards that are there are kept"
    assert split_of("x", 0.0) == "train"
    with pytest.raises(DataError, match="nothing to import"):
        collect([], tmp_path / "e", "toy")
