"""Import of Robo4D-200k, LeRobot (and export), bags and lifters, from files written by the tests."""

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
from support.recordings import FPS, STORE, H, N, W, header, image, joint_state, message, table_camera, waving
from support.recordings import yam as the_yam

from kinema4d_model.data.check import check_dataset
from kinema4d_model.data.check_episode import check_episode
from kinema4d_model.data.dataset_folder import DatasetFolder
from kinema4d_model.data.episode import Episode, load_robot
from kinema4d_model.data.importers.bag import bag_recording
from kinema4d_model.data.importers.build import build_episode
from kinema4d_model.data.importers.lerobot import lerobot_recording, lerobot_rows, lerobot_scenes
from kinema4d_model.data.importers.lifter import CommandLifter, PictureLifter, RobotSeen, make_lifter
from kinema4d_model.data.importers.recording import Recording, Unusable
from kinema4d_model.data.importers.robo4d import MISSING, read_robo4d, robo4d_numbers
from kinema4d_model.data.lerobot_export import VIEW, export_lerobot
from kinema4d_model.data.shards import read_episode
from kinema4d_model.pipeline.lifting import load_lifter
from kinema4d_model.preset import load_preset
from kinema4d_model.training.examples import example_from_episode
from kinema4d_ros.calibration import save_camera
from kinema4d_ros.cli import main
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, FileFormatError
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.trajectories import read_trajectory
from kinema4d_ros.io.video import VideoWriter
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot


@pytest.fixture(scope="module")
def yam() -> tuple[str, Robot]:
    return the_yam()


@pytest.fixture(scope="module")
def camera() -> PinholeCamera:
    return table_camera()


@pytest.fixture(scope="module")
def recording() -> Recording:
    return waving()


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
    # The robot's pixels, rendered from the measured joints, have the recorded depth of the arm.
    assert episode.depth_m is not None
    assert np.median(episode.depth_m[episode.robot_mask]) < 1.35


def test_gaps_are_listed_and_filters_have_reasons(recording: Recording) -> None:
    plain = replace(recording, depth=None, camera=None, actions=None, success=None)
    found = build_episode(plain, frames=9, width=48, height=32)
    assert set(found.missing) == {"actions", "depth", "camera", "condition", "ids", "outcome"}
    assert found.details["actions"].startswith("measured")
    assert check_episode(found) == []
    still = JointTrajectory(recording.joints.names, recording.joints.times, np.zeros((N, 7)))  # type: ignore[union-attr]
    grey = [np.full((H, W, 3), 90, np.uint8)] * N
    for change, reason in (
        ({"joints": still, "actions": None}, "does not move"),
        ({"images": grey}, "flat colour"),
        ({"images": recording.images[:2], "image_times": np.array([0.0, 2.0])}, "2 different images"),
        ({"image_times": recording.image_times + 100}, "overlap for 0.00 s"),
    ):
        with pytest.raises(Unusable, match=reason):
            build_episode(replace(recording, **change), frames=9, width=48, height=32)  # type: ignore[arg-type]


def test_lens_distortion_is_removed(recording: Recording, camera: PinholeCamera) -> None:
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
    for command, what in (
        (f"{sys.executable} -c 'import sys; sys.exit(3)'", "code 3"),
        (f"{sys.executable} -c 'pass'", "no usable depth"),
        ("/no/such/program", "does not exist"),
        (f"{sys.executable} -c 'import time; time.sleep(9)'", "timed out after 0.2 s"),
    ):
        with pytest.raises(DataError, match=what):
            CommandLifter(command, timeout_s=3.0 if "timed out" not in what else 0.2).lift(found.rgb, None)
    with pytest.raises(DataError, match="empty"):
        CommandLifter(" ")


def test_the_packages_own_lifter_lifts_video_and_keeps_the_robot_exact(
    recording: Recording, camera: PinholeCamera
) -> None:
    lifter = make_lifter("shipped")
    assert isinstance(lifter, PictureLifter)
    found = build_episode(replace(recording, depth=None), frames=3, width=W, height=H, lifter=lifter)
    assert "depth" not in found.missing
    assert check_episode(found) == []
    assert found.depth_m is not None
    assert found.joints is not None
    exact = render_pointmaps(load_robot("yam"), found.joints, camera).xyz[..., 2]
    robot = found.robot_mask & np.isfinite(exact)
    assert robot.sum() > 100
    assert found.depth_m[robot] == pytest.approx(exact[robot], abs=2e-4)
    # A ground rendered on the table plane lies on it.
    assert np.isfinite(found.depth_m).mean() > 0.9
    with pytest.raises(DataError, match="camera"):
        build_episode(replace(recording, depth=None, camera=None), frames=3, width=W, height=H, lifter=lifter)
    seen = RobotSeen(np.zeros((1, H, W), np.bool_))
    high = PictureLifter(load_lifter(), table_height_m=0.1).lift(found.rgb[:1], camera, seen).depth_m
    low = PictureLifter(load_lifter()).lift(found.rgb[:1], camera, seen).depth_m
    assert np.nanmedian(low - high) > 0.05, "a higher table is nearer"
    assert make_lifter("") is None
    assert isinstance(make_lifter("python lift.py"), CommandLifter)


def write_mp4(path: Path, frames: Iterable[NDArray[np.uint8]]) -> None:
    pictures = list(frames)
    path.parent.mkdir(parents=True, exist_ok=True)
    with VideoWriter(path, FPS, (pictures[0].shape[1], pictures[0].shape[0]), crf=4) as video:
        for picture in pictures:
            video.write(picture)


def test_robo4d_folders_are_imported_with_missing_fields_listed(
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
    (root / "train_img_shuffled.txt").write_text("first_frames/8.png\n")
    with pytest.raises(DataError, match=r"train_shuffled\.txt and train_img_shuffled\.txt disagree in line 1"):
        list(robo4d_numbers(root))
    (root / "train_shuffled.txt").unlink()
    assert dict(robo4d_numbers(root)) == {"7": "val", "8": "train"}, "one list is enough"
    (root / "train_shuffled.txt").write_text("videos/7.mp4\nvideos/9.mp4\n")
    (root / "train_img_shuffled.txt").write_text("first_frames/7.png\nfirst_frames/9.png\n")
    assert dict(robo4d_numbers(root)) == {"7": "train", "8": "val", "9": "train"}
    found = read_robo4d(root, "7", frames=5, width=W, height=H)
    assert found.missing == MISSING
    assert check_episode(found) == []
    assert np.abs(found.rgb[0].astype(int) - episode.rgb[0]).mean() < 4
    overlap = (found.condition_ids[-1] > 0) & condition.mask[-1]  # type: ignore[index]
    assert overlap.sum() > 0.9 * condition.mask[-1].sum()
    example = example_from_episode(found, load_preset("tiny").with_size(5, H, W))
    assert example.truth_xyz01.shape == (5, H, W, 3)
    assert example.inputs.robot_mask.any()
    assert float(example.inputs.robot_xyz01.max()) <= 1.0
    assert np.isnan(example.inputs.bounds).all()
    out = tmp_path / "out"
    arguments = ["data", "import", "robo4d", str(root), "--out", str(out), "--frames", "5", "--width", "96"]
    assert main([*arguments, "--height", "64"]) == 1, "a listed episode is missing"
    assert check_dataset(out) == []
    assert DatasetFolder.open(out).document["splits"] == {"train": 1, "val": 1}
    assert list(DatasetFolder.open(out).document["refused"]) == ["9"], "listed episodes without a file are named"
    (root / "pointmap" / "8.mp4").write_bytes(b"cut off")
    with pytest.raises(DataError, match=r"8\.mp4"):
        read_robo4d(root, "8", frames=5, width=W, height=H)
    with pytest.raises(DataError, match="no videos"):
        list(robo4d_numbers(tmp_path / "empty"))


def test_lerobot_v3_round_trip(tmp_path: Path, episode: Episode, camera: PinholeCamera, yam: tuple[str, Robot]) -> None:
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


def renamed(folder: Path, names: dict[str, list[str]]) -> None:
    """Rename a dataset's features."""
    path = folder / "meta" / "info.json"
    info = json.loads(path.read_text())
    for feature, given in names.items():
        info["features"][feature]["names"] = given
    path.write_text(json.dumps(info))


def test_lerobot_with_other_joint_names_needs_a_map_and_adds_notes(
    tmp_path: Path, episode: Episode, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "lerobot", tmp_path / "out"
    hand = load_robot("yam").gripper
    assert hand is not None
    closed01 = np.where(np.arange(7) == 6, 1 - hand.normalised(episode.joints[:, 6:]), episode.joints)  # type: ignore[index]
    export_lerobot([replace(episode, joints=closed01, actions=closed01)] * 2, folder, fps=FPS)
    other = [*(f"joint_{i}" for i in range(6)), "gripper"]
    renamed(folder, {"observation.state": [other], "action": [other]})  # type: ignore[dict-item]
    run = ["data", "import", "lerobot", str(folder), "--out", str(out), "--val", "0", "--frames", "5", "--width", "96"]
    assert main(run) == 2
    assert not list(out.glob("*/*.tar")), "an arm at home is worse than none"
    text = capsys.readouterr().err
    assert "no values for joint1, joint2, joint3, joint4, joint5, joint6" in text
    assert "the recording has joint_0, joint_1, joint_2, joint_3, joint_4, joint_5, gripper" in text
    mapped = [*run, "--height", "64", "--joint-map", text.split("--joint-map ")[1].split(";")[0]]
    assert main(mapped) == 2
    assert "--gripper-range" in capsys.readouterr().err
    for path in out.iterdir():
        path.unlink()
    assert main([*mapped, "--gripper-range", "0,1"]) == 0
    assert "note: gripper 'gripper': 0 = open, 1 = closed (--gripper-range)" in capsys.readouterr().out
    dataset = DatasetFolder.open(out)
    assert dataset.document["options"]["joint_map"]["joint_0"] == "joint1"
    assert dataset.document["options"]["gripper_range"] == [0.0, 1.0]
    back = read_episode(dataset.indices("train")[0], 0)
    assert back.joints is not None
    assert back.joints[0] == pytest.approx(episode.joints[0], abs=1e-5)  # type: ignore[index]
    assert back.joints[-1] == pytest.approx(episode.joints[-1], abs=1e-5)  # type: ignore[index]
    assert any("0 = open" in note for note in back.details["notes"])


def test_lerobot_actions_without_joints_are_kept_as_commands(
    tmp_path: Path, episode: Episode, yam: tuple[str, Robot]
) -> None:
    folder = tmp_path / "lerobot"
    export_lerobot([episode], folder, fps=FPS)
    renamed(folder, {"action": ["x", "y", "z", "roll", "pitch", "yaw", "gripper"]})
    found = lerobot_recording(folder, 0, yam)
    assert found.actions is None, "the home position is not taken as a command"
    assert found.commands["action"] == pytest.approx(episode.actions, abs=1e-6)
    assert any("names no joint of the arm" in note for note in found.details["notes"])
    renamed(folder, {"action": ["joint1", "y", "z", "roll", "pitch", "yaw", "gripper"]})
    with pytest.raises(FileFormatError, match="no values for joint2"):
        lerobot_recording(folder, 0, yam)


@pytest.mark.parametrize("gone", ["table", "video", "row"])
def test_a_missing_lerobot_episode_is_listed_and_the_rest_imported(
    tmp_path: Path, episode: Episode, capsys: pytest.CaptureFixture[str], gone: str
) -> None:
    folder, out = tmp_path / "set", tmp_path / "out"
    write_v2_1(folder, episode, 3, 4 if gone == "row" else 3)
    if gone == "table":
        (folder / "data" / "chunk-000" / "episode_000001.parquet").unlink()
    if gone == "video":
        (folder / "videos" / "chunk-000" / VIEW / "episode_000001.mp4").unlink()
    size = ["--frames", "5", "--width", "96", "--height", "64"]
    assert main(["data", "import", "lerobot", str(folder), "--out", str(out), "--val", "0", *size]) == 1
    text = capsys.readouterr().out
    lost = "set/3" if gone == "row" else "set/1"
    assert f"left out {lost}: missing: " in text
    whole = 3 if gone == "row" else 2
    assert f"{whole} train, 0 val; 1 of {whole + 1} left out, 1 of them missing from the source" in text
    document = DatasetFolder.open(out).document
    assert document["splits"]["train"] == whole
    assert list(document["refused"]) == [lost]


def write_v2_1(folder: Path, episode: Episode, episodes: int, promised: int) -> None:
    feature = {"dtype": "float32", "shape": [7], "names": list(episode.joint_names)}
    features = {"observation.state": feature, "action": feature, VIEW: {"dtype": "video", "shape": [H, W, 3]}}
    info = {"codebase_version": "v2.1", "fps": FPS, "total_episodes": promised, "features": features}
    (folder / "meta").mkdir(parents=True)
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    (folder / "data" / "chunk-000").mkdir(parents=True)
    for number in range(episodes):
        rows = {
            "observation.state": episode.joints.tolist(),  # type: ignore[union-attr]
            "action": episode.actions.tolist(),  # type: ignore[union-attr]
            "timestamp": (np.arange(9) / FPS).tolist(),
            "episode_index": [number] * 9,
        }
        pq.write_table(pa.table(rows), folder / "data" / "chunk-000" / f"episode_{number:06d}.parquet")
        write_mp4(folder / "videos" / "chunk-000" / VIEW / f"episode_{number:06d}.mp4", episode.rgb)


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

    # The same with images in the table: PNG bytes, or file names.
    (folder / "images").mkdir()
    pictures = []
    for i, rgb in enumerate(episode.rgb):
        data = cv2.imencode(".png", rgb[..., ::-1])[1].tobytes()
        (folder / "images" / f"{i}.png").write_bytes(data)
        pictures.append({"bytes": data if i % 2 else None, "path": f"images/{i}.png"})
    features[VIEW]["dtype"] = "image"
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    table = folder / "data" / "chunk-000" / "episode_000000.parquet"
    pq.write_table(pa.table({**rows, VIEW: pictures}), table)
    found = lerobot_recording(folder, 0, yam)
    assert np.array_equal(np.stack(found.images), episode.rgb)
    assert found.image_times == pytest.approx(np.arange(9) / FPS)
    for wrong, what in (
        ({"bytes": b"no picture", "path": None}, "decoded"),
        ({"bytes": None, "path": "../x"}, "is not in the dataset"),
    ):
        pq.write_table(pa.table({**rows, VIEW: [wrong] * 9}), table)
        with pytest.raises(DataError, match=what):
            lerobot_recording(folder, 0, yam)


def test_scenes_of_lerobot_come_from_its_metadata(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    info = {"codebase_version": "v2.1", "fps": 10, "total_episodes": 3, "features": {}}
    (tmp_path / "meta" / "info.json").write_text(json.dumps(info))
    rows = [{"episode_index": i, "tasks": ["tidy" if i < 2 else "pour"], "operator": "ab"[i % 2]} for i in range(3)]

    def scenes(key: str = "", **more: list[Any]) -> tuple[list[str], str]:
        lines = [json.dumps({**row, **{k: v[i] for k, v in more.items()}}) for i, row in enumerate(rows)]
        (tmp_path / "meta" / "episodes.jsonl").write_text("\n".join(lines))
        return lerobot_scenes(lerobot_rows(tmp_path), "d", key)

    assert scenes() == (["d/tidy", "d/tidy", "d/pour"], "task")
    assert scenes(building_id=[4, 5, 4]) == (["d/4", "d/5", "d/4"], "building_id")
    assert scenes("operator") == (["d/a", "d/b", "d/a"], "operator")
    assert scenes(tasks=[["x"]] * 3) == (["d/0", "d/1", "d/2"], "episode")
    with pytest.raises(DataError, match="moon"):
        scenes("moon")


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
                # Received half a second late: stamps are used.
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
