"""`items_of`: the episodes that a source of any kind would give, ready for `collect`."""

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

# Which scenes are held out: by the scene's name alone, or so many episodes of a source, always whole scenes.


def _place(scene: str) -> float:
    """A number from 0 to 1 that depends on the name only."""
    return int.from_bytes(hashlib.sha256(scene.encode()).digest()[:4], "big") / 2**32


def split_of(scene: str, val_share: float) -> str:
    """ "train" or "val" by the name of a scene: all episodes of one scene fall together, whatever their number."""
    return "val" if _place(scene) < val_share else "train"


def held_out(episodes: Mapping[str, int], wanted: int) -> frozenset[str]:
    """Scenes to hold out so that they have `wanted` episodes together, or as many fewer as whole scenes need.

    Args:
        episodes: how many there are, by scene.
        wanted: how many to hold out; one scene always stays for training.
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
    """The split by scene: by share, or by a number of episodes, for which `count` is asked once."""
    if val_episodes is None:
        return lambda scene: split_of(scene, val_share)
    chosen = held_out(count(), val_episodes)
    return lambda scene: "val" if scene in chosen else "train"


SOURCES = ("robo4d", "lerobot", "bag", "rlds")


@dataclass(frozen=True, eq=False)
class ImportOptions:
    """What an import needs besides its source.

    Attributes:
        frames, width, height: of the episodes.
        robot: name or URDF, and the model; None: RLDS joints stay unread.
        camera: calibration of the pictures; None leaves camera and condition missing.
        lifter: gives depth where there is none.
        masks: finds the robot in the pictures; None draws it.
        val_share: of scenes that are held out.
        val_episodes: how many episodes to hold out instead, in whole scenes.
        scene_key: what names the scene: a field of LeRobot's or RLDS' metadata, a pattern in a bag's path.
        view: camera of a LeRobot dataset.
        depth_topic, actions_topic: of a bag; found by their names if they are not given.
        rate_hz: of RLDS; None takes the dataset's known rate.
        joints: whose joints the recorded names are, and the gripper's scale.
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
    """An episode whose split is not decided yet."""

    name: str
    scene: str
    load: Callable[[], Episode]


def items_of(kind: str, source: Path, options: ImportOptions) -> Iterator[Item]:
    """Items of a source; its files are opened when an item is loaded."""
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
    """Items of an RLDS dataset: an item holds its episode's steps, so take one at a time.

    Where a number of episodes is held out, the metadata of all of them is read first; pictures are not decoded for it.
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
    """A recording whose files may be missing, which is no reason to give up the others."""
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
        raise DataError("no robot is named", expected="whose joints they are", code=ErrorCode.ARGUMENT_INVALID)
    return options.robot


def _bag_scene(name: str, pattern: str) -> str:
    """What the pattern finds in a bag's path; else the folder that holds it; else it is a scene of its own."""
    if pattern:
        try:
            found = re.search(pattern, name)
        except re.error as error:
            raise DataError(
                f"--scene-key {pattern!r}: {error}", expected="a pattern", code=ErrorCode.ARGUMENT_INVALID
            ) from None
        if found is None:
            raise DataError(
                f"--scene-key {pattern!r} is not in {name!r}",
                expected="a pattern that every bag's path has",
                code=ErrorCode.ARGUMENT_INVALID,
            )
        return "/".join(found.groups()) or found[0]
    return Path(name).parent.as_posix() if "/" in name else name


def _bags(source: Path) -> list[Path]:
    """The source itself, or every bag in it or in its folders."""
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
