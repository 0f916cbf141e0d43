"""`items_of`: the items of any source for `collect`, with their train/val split by scene."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kinema4d_model.data.episode import Episode
from kinema4d_model.data.importers.bag import bag_recording
from kinema4d_model.data.importers.build import build_episode
from kinema4d_model.data.importers.collect import Item
from kinema4d_model.data.importers.lerobot import lerobot_recording, lerobot_rows, lerobot_scenes
from kinema4d_model.data.importers.lifter import VideoLifter
from kinema4d_model.data.importers.masks import MaskSource
from kinema4d_model.data.importers.recording import Missing, Recording
from kinema4d_model.data.importers.rlds import RldsEpisode, RldsSource, open_rlds, steps_recording
from kinema4d_model.data.importers.robo4d import read_robo4d, robo4d_numbers
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, ErrorCode, KinemaError
from kinema4d_ros.io.joint_match import JointOptions
from kinema4d_ros.robot import Robot

__all__ = ["SOURCES", "ImportOptions", "held_out", "items_of", "rlds_items", "split_of", "splitter"]

# Held-out scenes: chosen by name, or to reach a number of episodes; always whole scenes.


def _place(scene: str) -> float:
    """Return a number from 0 to 1 that depends only on the name."""
    return int.from_bytes(hashlib.sha256(scene.encode()).digest()[:4], "big") / 2**32


def split_of(scene: str, val_share: float) -> str:
    """Return "train" or "val" by the name of a scene, so that all its episodes are in the same split."""
    return "val" if _place(scene) < val_share else "train"


def held_out(episodes: Mapping[str, int], wanted: int) -> frozenset[str]:
    """Return scenes to hold out with `wanted` episodes in total, or fewer if whole scenes do not fit.

    Args:
        episodes: number of episodes by scene.
        wanted: number of episodes to hold out; at least one scene stays for training.
    """
    chosen: list[str] = []
    left = wanted
    for scene in sorted(episodes, key=lambda name: (_place(name), name)):
        if episodes[scene] <= left and len(chosen) + 1 < len(episodes):
            chosen.append(scene)
            left -= episodes[scene]
    return frozenset(chosen)


def splitter(
    val_share: float, val_episodes: int | None, count: Callable[[], Mapping[str, int]]
) -> Callable[[str], str]:
    """Return a function from scene to split, by share or by number of episodes; `count` is then called once."""
    if val_episodes is None:
        return lambda scene: split_of(scene, val_share)
    chosen = held_out(count(), val_episodes)
    return lambda scene: "val" if scene in chosen else "train"


SOURCES = ("robo4d", "lerobot", "bag", "rlds")


@dataclass(frozen=True, eq=False)
class ImportOptions:
    """Options of an import.

    Attributes:
        frames, width, height: of the episodes.
        robot: name or URDF, and the model; None: RLDS joints are not read.
        camera: calibration of the images; None leaves camera and condition missing.
        lifter: estimates depth if the source has none.
        masks: finds the robot in the images; None renders it.
        val_share: share of held-out scenes.
        val_episodes: number of episodes to hold out instead, in whole scenes.
        scene_key: source of the scene name: a LeRobot or RLDS metadata field, or a pattern in a bag's path.
        view: camera of a LeRobot dataset.
        depth_topic, actions_topic: of a bag; found by name if not given.
        rate_hz: of RLDS; None uses the dataset's known rate.
        joints: map of joint names, and the gripper's scale.
    """

    frames: int
    width: int
    height: int
    robot: tuple[str, Robot] | None = None
    camera: PinholeCamera | None = None
    lifter: VideoLifter | None = None
    masks: MaskSource | None = None
    val_share: float = 0.05
    val_episodes: int | None = None
    scene_key: str = ""
    view: str = ""
    depth_topic: str = ""
    actions_topic: str = ""
    rate_hz: float | None = None
    joints: JointOptions = field(default_factory=JointOptions)


@dataclass(frozen=True)
class _Candidate:
    """An episode without a split yet."""

    name: str
    scene: str
    load: Callable[[], Episode]


def items_of(kind: str, source: Path, options: ImportOptions) -> Iterator[Item]:
    """Yield the items of a source; files are opened when an item is loaded."""
    if kind == "robo4d":
        size = {"frames": options.frames, "width": options.width, "height": options.height}
        for clip, split in robo4d_numbers(source):
            yield Item(clip, split, partial(read_robo4d, source, clip, **size))
    elif kind == "lerobot":
        yield from _split(list(_lerobot(source, options)), options)
    elif kind == "bag":
        yield from _split(list(_bag(source, options)), options)
    elif kind == "rlds":
        yield from rlds_items(open_rlds(str(source)), options)
    else:
        raise DataError(f"source {kind!r}", expected=f"one of {', '.join(SOURCES)}")


def _split(found: list[_Candidate], options: ImportOptions) -> Iterator[Item]:
    split = splitter(options.val_share, options.val_episodes, lambda: Counter(c.scene for c in found))
    for candidate in found:
        yield Item(candidate.name, split(candidate.scene), candidate.load)


def _lerobot(source: Path, options: ImportOptions) -> Iterator[_Candidate]:
    robot = _robot(options)
    rows = lerobot_rows(source)
    scenes, named = lerobot_scenes(rows, source.name, options.scene_key)
    for number, scene in enumerate(scenes):
        details = {"scene": scene, "scene_key": named}
        read = partial(lerobot_recording, source, number, robot, options.camera, options.view, details, options.joints)
        yield _Candidate(f"{source.name}/{number}", scene, partial(_built, partial(_there, read), options))


def _bag(source: Path, options: ImportOptions) -> Iterator[_Candidate]:
    robot = _robot(options)
    for path in _bags(source):
        name = path.name if path == source else path.relative_to(source).as_posix()
        scene = _bag_scene(name, options.scene_key)
        read = partial(
            bag_recording,
            path,
            robot,
            options.camera,
            depth_topic=options.depth_topic,
            actions_topic=options.actions_topic,
            details={"scene": scene, "scene_key": options.scene_key or ("episode" if scene == name else "folder")},
            joints=options.joints,
        )
        yield _Candidate(name, scene, partial(_built, read, options))


def rlds_items(source: RldsSource, options: ImportOptions) -> Iterator[Item]:
    """Yield items of an RLDS dataset; an item holds its episode's steps, so use one at a time.

    With `val_episodes`, the metadata of all episodes is read first, without decoding images.
    """
    rate_hz = source.rate_hz(options.rate_hz)
    scene: Callable[[RldsEpisode], str] = partial(source.scene, scene_key=options.scene_key)
    split = splitter(options.val_share, options.val_episodes, lambda: Counter(map(scene, source)))
    for episode in source:
        place = scene(episode)
        details = {
            "scene": f"{source.name}/{place}",
            "scene_key": options.scene_key or ("episode" if place == episode.key else "file_path"),
        }
        read = partial(
            steps_recording, episode, source.fields, rate_hz, options.robot, options.camera, details, options.joints
        )
        yield Item(episode.key, split(place), partial(_built, read, options))


def _there(read: Callable[[], Recording]) -> Recording:
    """Read a recording; missing files raise `Missing`, so that the import continues with the next one."""
    try:
        return read()
    except KinemaError as error:
        if error.code != ErrorCode.FILE_MISSING:
            raise
        raise Missing(error.what, expected=error.expected) from error


def _built(read: Callable[[], Recording], options: ImportOptions) -> Episode:
    return build_episode(
        read(),
        frames=options.frames,
        width=options.width,
        height=options.height,
        lifter=options.lifter,
        masks=options.masks,
    )


def _robot(options: ImportOptions) -> tuple[str, Robot]:
    if options.robot is None:
        raise DataError("no robot is given", expected="the robot of the joints", code=ErrorCode.ARGUMENT_INVALID)
    return options.robot


def _bag_scene(name: str, pattern: str) -> str:
    """Return the match of the pattern in a bag's path; else its parent folder; else the bag itself."""
    if pattern:
        try:
            found = re.search(pattern, name)
        except re.error as error:
            raise DataError(
                f"--scene-key {pattern!r}: {error}", expected="a regular expression", code=ErrorCode.ARGUMENT_INVALID
            ) from None
        if found is None:
            raise DataError(
                f"--scene-key {pattern!r} does not match {name!r}",
                expected="a pattern that matches every bag's path",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        return "/".join(found.groups()) or found[0]
    return Path(name).parent.as_posix() if "/" in name else name


def _bags(source: Path) -> list[Path]:
    """Return the source itself, or all bags in it or in its subfolders."""
    if source.is_file() or (source / "metadata.yaml").is_file():
        return [source]
    found: set[Path] = set()
    if source.is_dir():
        for depth in ("*", "*/*"):
            found |= {p.parent for p in source.glob(f"{depth}/metadata.yaml")}
        for depth in ("*", "*/*"):
            loose = (p for p in source.glob(depth) if p.suffix in (".mcap", ".db3") and p.is_file())
            found |= {p for p in loose if not (p.parent / "metadata.yaml").is_file()}
    if not found:
        raise DataError(f"{source} holds no bag", expected="a bag, or a folder of bags", code=ErrorCode.FILE_MISSING)
    return sorted(found)
