"""`items_of`: the episodes that a source of any kind would give, ready for `collect`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kinema4d_model.data.episode import Episode
from kinema4d_model.data.errors import DataError
from kinema4d_model.data.importers.bag import bag_recording
from kinema4d_model.data.importers.collect import Item, split_of
from kinema4d_model.data.importers.lerobot_in import lerobot_episodes, lerobot_recording
from kinema4d_model.data.importers.lifter import Lifter
from kinema4d_model.data.importers.recording import Recording, build_episode
from kinema4d_model.data.importers.rlds import rlds_recordings
from kinema4d_model.data.importers.robo4d import read_robo4d, robo4d_numbers
from kinema4d_ros.camera import PinholeCamera
from kinema4d_ros.errors import ErrorCode
from kinema4d_ros.robot import Robot

__all__ = ["SOURCES", "ImportOptions", "items_of"]

SOURCES = ("robo4d", "lerobot", "bag", "rlds")


@dataclass(frozen=True, eq=False)
class ImportOptions:
    """What an import needs besides its source.

    Attributes:
        frames, width, height: of the episodes.
        robot: name or URDF, and the model.
        camera: calibration of the pictures; None leaves camera and condition missing.
        lifter: gives depth where there is none.
        val_share: of scenes that are held out.
        view: camera of a LeRobot dataset.
        rate_hz: of RLDS, which does not say.
    """

    frames: int
    width: int
    height: int
    robot: tuple[str, Robot]
    camera: PinholeCamera | None = None
    lifter: Lifter | None = None
    val_share: float = 0.05
    view: str = ""
    rate_hz: float = 15.0


def items_of(kind: str, source: Path, options: ImportOptions) -> Iterator[Item]:
    """Items of a source; its files are opened when an item is loaded."""
    size = {"frames": options.frames, "width": options.width, "height": options.height}
    if kind == "robo4d":
        for clip, split in robo4d_numbers(source):
            yield Item(clip, split, partial(read_robo4d, source, clip, **size))
    elif kind == "lerobot":
        for number in range(lerobot_episodes(source)):
            name = f"{source.name}/{number}"
            read = partial(lerobot_recording, source, number, options.robot, options.camera, options.view)
            yield Item(name, split_of(name, options.val_share), partial(_built, read, options))
    elif kind == "bag":
        for path in _bags(source):
            read = partial(bag_recording, path, options.robot, options.camera)
            yield Item(path.name, split_of(path.name, options.val_share), partial(_built, read, options))
    elif kind == "rlds":
        for recording in rlds_recordings(
            str(source), rate_hz=options.rate_hz, robot=options.robot, camera=options.camera
        ):
            load = partial(_built, partial(_same, recording), options)
            yield Item(recording.key, split_of(recording.key, options.val_share), load)
    else:
        raise DataError(f"source {kind!r}", expected=f"one of {', '.join(SOURCES)}")


def _same(recording: Recording) -> Recording:
    return recording


def _built(read: partial[Recording], options: ImportOptions) -> Episode:
    return build_episode(
        read(), frames=options.frames, width=options.width, height=options.height, lifter=options.lifter
    )


def _bags(source: Path) -> list[Path]:
    """The source itself, or every bag in it."""
    if source.is_file() or (source / "metadata.yaml").is_file():
        return [source]
    # A bag whose recorder was killed has no metadata.yaml.
    found = sorted({p.parent for pattern in ("*/metadata.yaml", "*/*.mcap") for p in source.glob(pattern)})
    found += sorted(p for p in source.iterdir() if p.suffix in (".mcap", ".db3")) if source.is_dir() else []
    if not found:
        raise DataError(f"{source} holds no bag", expected="a bag, or a folder of bags", code=ErrorCode.FILE_MISSING)
    return found
