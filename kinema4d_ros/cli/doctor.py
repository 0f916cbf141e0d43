"""`kinema4d doctor`: checks of the installation, or with --live of a running graph; each finding says how to fix it.

--live listens for --seconds, sends no command, and needs the same ROS domain. Exit code 1: something is missing or
wrong. A warning may be intended; `unchecked` names what could not be checked.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kinema4d_ros.core.errors import ErrorCode, KinemaError, SetupError
from kinema4d_ros.io.resources import share_directory
from kinema4d_ros.runtime.child import exit_within

__all__ = ["Check", "examine", "register", "run"]

Status = Literal["ok", "missing", "optional"]

NEEDED_DISK_GB = 5.0
"""A venv takes 3 GB; a rollout of 49 frames 10 to 200 MB."""


@dataclass(frozen=True)
class Check:
    """One line of the report; `missing` must be fixed, `optional` need not be."""

    name: str
    status: Status
    detail: str
    fix: str = ""


def _has(module: str) -> bool:
    """Return whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "version unknown"


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if (3, 10) <= sys.version_info[:2] <= (3, 13):
        return Check("Python", "ok", version)
    return Check(
        "Python", "missing", f"{version}; 3.10 to 3.13 are supported", "make clean; make setup PYTHON=python3.11"
    )


def _ros() -> Check:
    if not _has("rclpy"):
        return Check("ROS 2", "missing", "rclpy is not importable", "make setup, or source /opt/ros/jazzy/setup.bash")
    if _from_wheels():
        return Check("ROS 2", "ok", f"Jazzy wheels in this venv (rclpy {_version('ros-jazzy-rclpy')})")
    return Check("ROS 2", "ok", f"distribution {os.environ.get('ROS_DISTRO', 'of unknown name')}")


def _from_wheels() -> bool:
    try:
        importlib.metadata.version("ros-jazzy-rclpy")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _messages() -> Check:
    if _has("kinema4d_msgs"):
        return Check("kinema4d_msgs", "ok", "built")
    fix = "make setup" if _from_wheels() else "colcon build --base-paths . kinema4d_msgs && source install/setup.bash"
    return Check("kinema4d_msgs", "missing", "not built", fix)


def _ros_extra(module: str, gives: str) -> Check:
    if _has(module):
        return Check(module, "ok", gives)
    package = module.replace("_", "-")
    return Check(module, "optional", f"not installed: {gives}", f"on ROS 2: sudo apt install ros-jazzy-{package}")


def _moveit() -> Check:
    if _has("moveit"):
        return Check("MoveIt", "ok", "moveit_py: for kinematics: moveit")
    return Check(
        "MoveIt",
        "optional",
        "not installed: pinocchio does the kinematics",
        "on ROS 2: sudo apt install ros-jazzy-moveit",
    )


def _gpu() -> Check:
    if not _has("torch"):
        return Check("torch", "optional", "not installed: no learned generator", "make setup TORCH=cpu or TORCH=cuda")
    import torch

    if torch.cuda.is_available():
        return Check("GPU", "ok", f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    return Check("GPU", "optional", f"none: torch {torch.__version__} runs on the CPU", "make setup TORCH=cuda")


def _checkpoints() -> Check:
    folder = Path(os.environ.get("KINEMA4D_CHECKPOINTS") or "~/.cache/kinema4d").expanduser()
    found = sorted(folder.glob("**/*.safetensors")) if folder.is_dir() else []
    if found:
        size_gb = sum(path.stat().st_size for path in found) / 1e9
        here = f"{len(found)} files, {size_gb:.1f} GB in {folder}"
        problem = next(filter(None, map(_misfit, sorted(folder.iterdir()))), None) if _has("diffusers") else None
        if problem is not None:
            return Check("checkpoints", "optional", f"{here}; {problem.what}", problem.hint or problem.expected)
        return Check("checkpoints", "ok", here)
    return Check(
        "checkpoints",
        "optional",
        f"no *.safetensors below {folder}",
        "only the learned generator needs them: kinema4d fetch-weights, or set KINEMA4D_CHECKPOINTS",
    )


def _misfit(folder: Path) -> KinemaError | None:
    """Return why no preset with the folder's name can be loaded from it; None if one can, or if there is none."""
    from kinema4d_model.checkpoints.loading import check_bundle
    from kinema4d_ros.generators.spec import preset_names

    problems = []
    for preset in (name for name in preset_names() if name.split("_")[0] == folder.name):
        try:
            check_bundle(preset, folder)
        except KinemaError as error:
            problems.append(error)
        else:
            return None
    return problems[0] if problems else None


def _robot() -> Check:
    from kinema4d_ros.robot import Robot

    try:
        robot = Robot.load("yam")
    except KinemaError as error:
        return Check("YAM meshes", "missing", error.what, error.hint or "pip install --no-deps dreamscale-i2rt")
    triangles = sum(len(shape.mesh.faces) for link in robot.links for shape in link.visuals)
    return Check("YAM meshes", "ok", f"{len(robot.links)} links, {triangles:,} triangles")


def _calibration(camera_file: Path | None) -> Check:
    from kinema4d_ros.calibration import read_camera, read_pose

    path = camera_file or share_directory() / "calibration" / "demo_lab.yaml"
    try:
        camera = read_camera(path)
        residual = read_pose(path).residuals.px
    except KinemaError as error:
        return Check("calibration", "missing", str(error), f"fix {path}; calibration/README.md has the schema")
    size = f"{camera.width} x {camera.height}"
    if camera_file is not None:
        quality = "residual unknown" if residual is None else f"residual {residual:.2f} px"
        return Check("calibration", "ok", f"{path}, {size}, {quality}")
    return Check(
        "calibration", "optional", f"the demo camera ({size})", "kinema4d doctor --camera YOUR_FILE checks yours"
    )


def _gl() -> Check:
    """Check for GL, which MuJoCo's renderer and other renderers in bench/ need; kinema4d's own does not."""
    for name in ("EGL", "OSMesa"):
        library = ctypes.util.find_library(name)
        if library:
            try:
                ctypes.CDLL(library)
            except OSError:
                continue
            return Check("GL", "ok", f"{name} ({library}): MuJoCo can render too")
    return Check(
        "GL", "optional", "none: kinema4d's own renderer needs none", "sudo apt-get install libegl1 libosmesa6"
    )


def _warp() -> Check:
    if _has("warp"):
        return Check("Warp", "ok", f"warp-lang {_version('warp-lang')}: renders on a CUDA GPU if there is one")
    return Check("Warp", "optional", "not installed: rendering stays on the CPU", "pip install warp-lang")


def _disk() -> Check:
    usage = shutil.disk_usage(Path.cwd())
    free_gb = usage.free / 1e9
    if free_gb >= NEEDED_DISK_GB:
        return Check("free disk", "ok", f"{free_gb:.0f} GB")
    return Check("free disk", "missing", f"{free_gb:.1f} GB; {NEEDED_DISK_GB:.0f} GB are needed", "rm -rf out runs")


def examine(camera_file: Path | None = None) -> Iterator[Check]:
    """Yield the result of every check; an unexpected exception in a check is reported as `missing`.

    `camera_file` is a calibration to check instead of the demo's.
    """
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("Python", _python),
        ("ROS 2", _ros),
        ("kinema4d_msgs", _messages),
        ("tf2_ros", lambda: _ros_extra("tf2_ros", "the ROS distribution's transform library")),
        ("cv_bridge", lambda: _ros_extra("cv_bridge", "the ROS distribution's image conversion")),
        ("MoveIt", _moveit),
        ("GPU", _gpu),
        ("Warp", _warp),
        ("checkpoints", _checkpoints),
        ("YAM meshes", _robot),
        ("calibration", lambda: _calibration(camera_file)),
        ("GL", _gl),
        ("free disk", _disk),
    ]
    for name, check in checks:
        try:
            yield check()
        except Exception as error:
            yield Check(name, "missing", f"the check itself failed: {error!r}", "report this as a bug")


COLOURS = {"ok": "32", "missing": "31", "optional": "33", "wrong": "31", "warning": "33", "unchecked": "33"}

LIVE_S = 5.0
"""Default of --seconds: five reports of each node's diagnostics."""

OVERTIME_S = 20.0
"""Seconds after --seconds until the command gives up: imports, discovery of services, and leaving DDS."""


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "doctor",
        help="check the installation, or a running graph",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    parser.add_argument("--camera", type=Path, metavar="FILE", help="also check this calibration file")
    parser.add_argument("--live", action="store_true", help="check a running graph instead of the installation")
    parser.add_argument(
        "--seconds", type=float, default=LIVE_S, help=f"how long --live listens (default: {LIVE_S:g})", metavar="S"
    )
    parser.add_argument("--namespace", default="", help="namespace of the graph, for --live")
    parser.add_argument("--robot", default="", help="the robot, for --live (default: that of the graph's twin)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print every check; exit code 1 when something that is needed is missing or wrong."""
    if arguments.live:
        return _run_live(arguments)
    checks = []
    for check in examine(arguments.camera):
        checks.append(check)
        if not arguments.json:
            print(_line(check.status, check.name, check.detail, check.fix), flush=True)
    missing = [check.name for check in checks if check.status == "missing"]
    if arguments.json:
        print(json.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    elif missing:
        print(f"\nmissing: {', '.join(missing)}")
    else:
        print("\nall requirements are met")
    return 1 if missing else 0


def _run_live(arguments: argparse.Namespace) -> int:
    if not 0.5 <= arguments.seconds <= 600.0:
        raise KinemaError(f"--seconds is {arguments.seconds:g}", expected="0.5 to 600", code=ErrorCode.ARGUMENT_INVALID)
    for check in (_ros(), _messages()):
        if check.status == "missing":
            raise SetupError(f"{check.name}: {check.detail}", expected="ROS 2 and the messages", hint=check.fix)
    found = _examine_live(arguments)
    wrong = sorted({finding.name for finding in found if finding.status == "wrong"})
    if arguments.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in found], indent=2))
    else:
        for finding in found:
            print(_line(finding.status, finding.name, finding.detail, finding.fix))
        print(f"\nwrong: {', '.join(wrong)}" if wrong else "\nnothing is wrong")
    return 1 if wrong else 0


def _examine_live(arguments: argparse.Namespace) -> list[Any]:
    """Observe and check in a thread: DDS was observed to block forever, and this command must not."""
    from kinema4d_ros.ros.live import observe
    from kinema4d_ros.ros.live_checks import Finding, check_live

    done: list[Any] = []

    def work() -> None:
        try:
            seen = observe(arguments.seconds, arguments.namespace)
            done.append(check_live(seen, arguments.robot, str(arguments.camera or "")))
        except Exception as error:
            done.append(error)

    thread = threading.Thread(target=work, name="doctor", daemon=True)
    thread.start()
    thread.join(timeout=arguments.seconds + OVERTIME_S)
    if not done:
        exit_within(2.0, 1)  # the blocked thread could also block the interpreter's exit
        detail = f"the middleware did not respond within {arguments.seconds + OVERTIME_S:g} s"
        return [Finding("graph", "wrong", detail, "check RMW_IMPLEMENTATION and free space in /dev/shm; try again")]
    if isinstance(done[0], Exception):
        raise done[0]
    return list(done[0])


def _line(status: str, name: str, detail: str, fix: str) -> str:
    text = f"{status:<9}"
    if sys.stdout.isatty():
        text = f"\033[{COLOURS[status]}m{text}\033[0m"
    return f"{text} {name:<15} {detail}" + (f"\n{'':26}-> {fix}" if fix else "")
