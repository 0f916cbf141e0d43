"""Record what the program computes for fixed inputs, to show that moving code changes nothing.

    python -m support.golden OUT.json      (from test/, with the project's Python)

Two kinds of entries: `digests` are exact and hold on one machine only (compilers and BLAS differ elsewhere);
`figures` are numbers, verdicts, codes and option names that hold everywhere, within small tolerances.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from support.seen_robot import see_robot

from kinema4d_ros.calibration import Extrinsics, read_camera, save_camera
from kinema4d_ros.cli import build_parser, main
from kinema4d_ros.core.rollout import Rollout
from kinema4d_ros.core.trajectory import JointTrajectory
from kinema4d_ros.io.images import write_image
from kinema4d_ros.io.tables import write_trajectory
from kinema4d_ros.lab import LabCamera, LabSimulation
from kinema4d_ros.robot import Robot

ROOT = Path(__file__).resolve().parents[2]

EPISODES = 20

Part = tuple[dict[str, Any], dict[str, Any]]
"""Digests and figures."""


def options() -> dict[str, Any]:
    """Every verb's options with their defaults, by verb."""
    found: dict[str, Any] = {}

    def walk(parser: argparse.ArgumentParser, verb: str) -> None:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, child in action.choices.items():
                    walk(child, f"{verb} {name}".strip())
            elif action.dest != "help":
                default = (
                    action.default if isinstance(action.default, int | float | type(None)) else str(action.default)
                )
                found.setdefault(verb, {})["/".join(action.option_strings) or action.dest] = default

    walk(build_parser(), "")
    return found


def run(*arguments: object) -> None:
    """One verb; anything but success ends the recording."""
    code = main([str(argument) for argument in arguments])
    if code != 0:
        raise SystemExit(f"kinema4d {' '.join(map(str, arguments))} ended with {code}")


def digest_folder(folder: Path, ignore: tuple[str, ...] = ()) -> dict[str, str]:
    """sha256 of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ignore and path.suffix != ".ply"  # names its rollout
    }


def rollouts(folder: Path) -> Part:
    """The demonstration's plan in the lab's picture, by composite and by nano."""
    robot = Robot.load("yam")
    camera = read_camera(ROOT / "calibration/demo_lab.yaml")
    lab = LabSimulation("canonical", 3, robot)
    image = LabCamera(robot, camera.rectified()).capture(lab.state()).rgb
    write_image(folder / "image.png", image)
    digests, figures = {}, {}
    for preset in ("composite", "nano"):
        out = folder / preset
        run(
            "generate", "--preset", preset, "--image", folder / "image.png", "--frames", 17, "--out", out,
            "--trajectory", ROOT / "config/demo/pick_and_place.csv",
        )  # fmt: skip
        digests[preset] = digest_folder(out, ("meta.json",))
        figures[preset] = _pictures(out)
    return digests, figures


def _pictures(folder: Path) -> dict[str, Any]:
    rollout = Rollout.load(folder)
    step = max(1, (len(rollout) - 1) // 4)
    return {
        "shape": list(rollout.rgb.shape),
        "rgb": [np.asarray(frame, float).mean(axis=(0, 1)).round(3).tolist() for frame in rollout.rgb[::step]],
        "xyz_m": [np.nanmean(frame, axis=(0, 1)).round(5).tolist() for frame in rollout.xyz[::step]],
        "robot_pixels": [int(mask.sum()) for mask in rollout.robot_mask[::step]],
        "depth": rollout.provenance.depth,
    }


def episodes(folder: Path) -> Part:
    """Twenty episodes of the lab."""
    out = folder / "episodes"
    run("data", "make", "--config", "nano", "--out", out, "--episodes", EPISODES, "--seed", 7)
    digests = digest_folder(out)
    return digests, {"files": sorted(digests)}


def evaluation(folder: Path) -> Part:
    """Two policies on two tables, judged in the lab, by composite and by nano."""
    out = folder / "evaluation"
    run(
        "evaluate", "--policies", "expert,off=expert:offset_m=0.03", "--scenarios", "canonical,dynamic", "--runs", 2,
        "--models", "composite,nano", "--width", 180, "--frames", 17, "--workers", 0, "--judge-truth", "--out", out,
    )  # fmt: skip
    trials = [json.loads(line) for path in sorted(out.glob("trials-*.jsonl")) for line in path.read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    figures = {"trials": _stable(trials), "summary": _stable(summary)}
    exact = hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()
    return {"trials_and_summary": exact}, figures


def _stable(node: Any) -> Any:
    """Without what differs from run to run: durations, versions and machines."""
    if isinstance(node, dict):
        skipped = {"seconds", "software", "machine", "began", "ended", "rollout_id", "made_by", "weights"}
        return {k: _stable(v) for k, v in node.items() if k not in skipped and "seconds" not in k}
    return [_stable(item) for item in node] if isinstance(node, list) else node


def markerless(folder: Path) -> Part:
    """A camera found again from masks of the robot."""
    robot = Robot.load("yam")
    seen = see_robot(robot, 1, poses=6)
    for index, mask in enumerate(seen.masks):
        write_image(folder / "masks" / f"{index}.png", np.repeat(mask.astype(np.uint8)[..., None] * 255, 3, axis=2))
    write_trajectory(JointTrajectory(robot.joint_names, np.arange(len(seen.q), dtype=float), seen.q), folder / "q.csv")
    guess, out = folder / "guess.yaml", folder / "camera.yaml"
    save_camera(guess, seen.camera.posed(seen.guess), Extrinsics("base_link", "camera_optical_frame", seen.guess))
    run(
        "calibrate", "markerless", folder / "masks", "--joints", folder / "q.csv",
        "--camera", guess, "--guess", guess, "--out", out,
    )  # fmt: skip
    pose = read_camera(out).base_T_camera
    return {"base_T_camera": hashlib.sha256(pose.tobytes()).hexdigest()}, {"base_T_camera": pose.round(6).tolist()}


PARTS: dict[str, Callable[[Path], Part]] = {
    "rollouts": rollouts,
    "episodes": episodes,
    "evaluation": evaluation,
    "markerless": markerless,
}


def record() -> dict[str, Any]:
    """All parts, and the command line's options."""
    found: dict[str, Any] = {"options": options(), "digests": {}, "figures": {}}
    for name, part in PARTS.items():
        with tempfile.TemporaryDirectory() as folder:
            found["digests"][name], found["figures"][name] = part(Path(folder))
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(record(), indent=1, sort_keys=True) + "\n")
