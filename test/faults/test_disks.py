"""Full and read-only disks: every writer says which file and why, leaves good files alone and no half ones behind."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from support.figures import Figures
from support.small_disks import READ_ONLY_TEXT, ROOM_TEXT, SmallDisk, small_disk

from kinema4d_ros.calibration import read_camera, save_camera
from kinema4d_ros.cli import main
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.io.resources import share_path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

DEMO = share_path("config/demo/pick_and_place.csv")
CAMERA = share_path("calibration/demo_lab.yaml")
BOARD = "charuco:9x6:0.03:0.0225"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", megabytes=16.0) as made:
        yield made


@pytest.mark.parametrize("room_bytes", [0, 1])
def test_a_good_camera_file_survives_a_full_disk(disk: SmallDisk, room_bytes: int, figures: Figures) -> None:
    camera = read_camera(CAMERA)
    path = disk.path / "camera.yaml"
    save_camera(path, camera, name="as it was")
    before = disk.content()
    # Room for a file of one page at most: the new one can be begun and not finished.
    disk.fill(4096 * room_bytes)
    with pytest.raises(KinemaError) as caught:
        save_camera(path, camera, name="x" * 9000)
    assert caught.value.code == ErrorCode.FILE_NOT_WRITABLE
    assert str(path) in caught.value.what
    assert ROOM_TEXT in caught.value.what
    assert disk.content() == before
    disk.make_room()
    save_camera(path, camera.scaled(90, 60))
    assert read_camera(path).width == 90
    figures.note("disk full while a calibration is saved", "code", caught.value.code.name)
    figures.note("disk full while a calibration is saved", "the file that was there", "unchanged")


def test_a_good_camera_file_survives_a_read_only_disk(disk: SmallDisk) -> None:
    camera = read_camera(CAMERA)
    save_camera(disk.path / "camera.yaml", camera)
    before = disk.content()
    disk.read_only()
    for path in (disk.path / "camera.yaml", disk.path / "new.yaml", disk.path / "new" / "camera.yaml"):
        with pytest.raises(KinemaError) as caught:
            save_camera(path, camera.scaled(90, 60))
        assert caught.value.code == ErrorCode.FILE_NOT_WRITABLE
        assert str(path) in caught.value.what
        assert READ_ONLY_TEXT in caught.value.what
    assert disk.content() == before


@dataclass(frozen=True)
class Command:
    """One that writes.

    Attributes:
        arguments: given the folder of inputs and the path that it shall write.
        results: files that are there when it has worked, beside or below that path.
        prepare: puts into the place what must be there before.
        kept: files that an interrupted one may leave: complete, and used by the next call.
    """

    arguments: Callable[[Path, Path], list[str]]
    results: Callable[[Path], list[Path]]
    prepare: Callable[[Path, Path], None] = lambda inputs, out: None
    kept: str = "(?!)"


def _render(_: Path, out: Path) -> list[str]:
    return ["render", "--frames", "5", "--size", "180x120", "--out", str(out)]


def _generate(inputs: Path, out: Path) -> list[str]:
    options = ["--preset", "composite", "--frames", "5", "--camera", str(inputs / "camera.yaml")]
    return ["generate", "--trajectory", str(DEMO), *options, "--out", str(out)]


def _make_data(inputs: Path, out: Path) -> list[str]:
    return ["data", "make", "--config", str(inputs / "data.yaml"), "--episodes", "3", "--out", str(out)]


def _evaluate(workers: int) -> Callable[[Path, Path], list[str]]:
    sizes = ["--width", "96", "--frames", "5", "--runs", "2", "--scenarios", "canonical"]
    what = ["--policies", "expert", "--models", "composite", "--workers", str(workers)]
    return lambda _, out: ["evaluate", *what, *sizes, "--out", str(out)]


def _demonstrations(_: Path, out: Path) -> list[str]:
    return ["policy", "demos", "--episodes", "2", "--out", str(out)]


def _train(inputs: Path, out: Path) -> list[str]:
    return ["train", "--config", str(inputs / "run" / "train.yaml"), "--stage", "network", "--resume", "--quiet",
            "--out", str(out)]  # fmt: skip


def _copy_codec(inputs: Path, out: Path) -> None:
    shutil.copytree(inputs / "run" / "codec", out / "codec", dirs_exist_ok=True)


TRIALS = r".*(evaluation\.json|trials-0\.jsonl|runs/.*|pictures/.*)"
COMMANDS = {
    "render": Command(_render, lambda out: [out / "render.json", out / "overlay.mp4"]),
    "generate": Command(_generate, lambda out: [out / "meta.json"]),
    "board": Command(
        lambda _, out: ["calibrate", "board", "--board", BOARD, "--out", f"{out}.png"],
        lambda out: [Path(f"{out}.png")],
    ),
    "metrics": Command(
        lambda inputs, out: ["metrics", str(inputs / "rollout"), str(inputs / "rollout"), "--video", f"{out}.mp4"],
        lambda out: [Path(f"{out}.mp4")],
    ),
    "segment": Command(
        lambda inputs, out: ["segment", str(inputs / "pictures"), "--method", "rendered", "--out", str(out),
                             "--camera", str(inputs / "camera.yaml"), "--joints", str(inputs / "joints.csv")],
        lambda out: [out / "segmentation.json"],
    ),
    "policy try": Command(
        lambda _, out: ["policy", "try", "expert", "--limit", "1", "--strip", f"{out}.png"],
        lambda out: [Path(f"{out}.png")],
    ),
    "policy demos": Command(_demonstrations, lambda out: [], kept=r".*\.(npz|json)"),
    "data make": Command(
        _make_data, lambda out: [out / "dataset.json"], kept=r".*(\.lock|dataset\.json|\.tar|\.index\.json)"
    ),
    "data sheet": Command(
        lambda inputs, out: ["data", "sheet", str(inputs / "data"), "--out", f"{out}.png"],
        lambda out: [Path(f"{out}.png")],
    ),
    "data export": Command(
        lambda inputs, out: ["data", "export", str(inputs / "data"), "--out", str(out)],
        lambda out: [out / "meta" / "info.json"],
    ),
    "evaluate, one process": Command(
        _evaluate(0), lambda out: [out / "report.html"], kept=TRIALS
    ),
    "evaluate": Command(
        _evaluate(1), lambda out: [out / "report.html"], kept=TRIALS
    ),
    "train": Command(
        _train,
        lambda out: [out / "metrics.jsonl", out / "checkpoints" / "step-00000012" / "progress.json"],
        prepare=_copy_codec,
        kept=r".*(codec/.*|config\.yaml|metrics\.jsonl|strips/.*|tensorboard/.*|checkpoints/(step|best)-\d+/.*)",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read: a small camera, pictures, a rollout, a dataset, a run that can be trained."""
    from support.training_runs import make_run

    folder = tmp_path_factory.mktemp("inputs")
    save_camera(folder / "camera.yaml", read_camera(CAMERA).scaled(180, 120))
    document = yaml.safe_load(share_path("config/data/nano.yaml").read_text())
    small = {**document, "frames": 5, "width": 48, "height": 32, "shard_episodes": 1}
    (folder / "data.yaml").write_text(yaml.safe_dump(small))
    for arguments in (
        ["data", "make", "--config", str(folder / "data.yaml"), "--episodes", "2", "--out", str(folder / "data")],
        _generate(folder, folder / "rollout"),
    ):
        assert main(arguments) == 0
    (folder / "pictures").mkdir()
    shutil.copy(next((folder / "rollout" / "rgb").iterdir()), folder / "pictures" / "0.png")
    (folder / "joints.csv").write_text("\n".join(DEMO.read_text().splitlines()[:2]) + "\n")
    (folder / "run").mkdir()
    make_run(folder / "run", episodes=6, validation=2)
    return folder


def call(capfd: pytest.CaptureFixture[str], arguments: list[str]) -> tuple[int, str]:
    """Exit code and output of a command, in this process: what it does not catch fails the test."""
    capfd.readouterr()
    code = main(arguments)
    out, err = capfd.readouterr()
    return code, out + err


def require_refusal(code: int, text: str, disk: SmallDisk, reason: str) -> None:
    assert code > 0, text
    assert "Traceback" not in text, text
    assert ErrorCode.FILE_NOT_WRITABLE.name in text, text
    assert reason in text, text
    assert str(disk.path) in text, text


def unexpected(disk: SmallDisk, command: Command, before: dict[str, bytes]) -> list[str]:
    """Files that a refused command changed or left behind, complete ones that the next call uses apart."""
    after = disk.content()
    changed = [name for name in after if after[name] != before.get(name)]
    gone = [name for name in before if name not in after]
    return [name for name in changed if not re.fullmatch(command.kept, name)] + gone


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_on_full_and_read_only_disks(
    name: str, inputs: Path, tmp_path: Path, figures: Figures, capfd: pytest.CaptureFixture[str]
) -> None:
    command = COMMANDS[name]
    with small_disk(tmp_path / "disk", megabytes=64.0) as disk:
        good, new = disk.path / "good", disk.path / "new"
        command.prepare(inputs, good)
        code, text = call(capfd, command.arguments(inputs, good))
        assert code == 0, text
        assert all(path.is_file() for path in command.results(good)), sorted(disk.content())
        needed = sum(len(data) for data in disk.content().values())
        command.prepare(inputs, new)
        before = disk.content()
        # At the first write, and in the middle.
        for share in (0.0, 0.6):
            disk.fill(round(share * needed))
            require_refusal(*call(capfd, command.arguments(inputs, new)), disk, ROOM_TEXT)
            assert not unexpected(disk, command, before), (share, unexpected(disk, command, before))
    # Another disk: a library that was refused may hold its file open, and such a disk cannot be made read-only.
    with small_disk(tmp_path / "other", megabytes=64.0) as disk:
        new = disk.path / "new"
        command.prepare(inputs, new)
        disk.read_only()
        before = disk.content()
        require_refusal(*call(capfd, command.arguments(inputs, new)), disk, READ_ONLY_TEXT)
        assert disk.content() == before
        disk.writable()
        code, text = call(capfd, command.arguments(inputs, new))
        assert code == 0, text
        assert all(path.is_file() for path in command.results(new)), sorted(disk.content())
    fault = f"disk full or read-only: kinema4d {name}"
    figures.note(fault, "code", ErrorCode.FILE_NOT_WRITABLE.name)
    figures.note(fault, "files lost or torn, in 3 refusals", 0)
