"""Scores of docs/detection.md: objects of lab tables, detected and fitted from one image, against the truth.

python -m kinema4d_model.detection.evaluate --seeds 0 40 --width 360 --picture out/detection.png
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.evaluation.execute import evaluation_camera
from kinema4d_ros.evaluation.settings import EvaluationSettings
from kinema4d_ros.generators.draft.detection import Detection, Detector, load_detector
from kinema4d_ros.generators.draft.outlines import fit_outlines
from kinema4d_ros.generators.draft.scene import FittedObject, FittedScene
from kinema4d_ros.io.files import replacing_file
from kinema4d_ros.io.png import encode_png
from kinema4d_ros.lab import LabCamera, LabImage, LabSimulation, PlacedObject, Style, profile_names, scenario_names
from kinema4d_ros.lab.profile import CONSTANT
from kinema4d_ros.lab.scenario import TABLE_SCENARIOS

__all__ = ["ObjectScore", "main", "score_scene"]

MATCH_M = 0.03
"""A fitted object belongs to the true one whose centre is nearest, if that is nearer than this."""
LEAST_PIXELS = 25
"""True objects with fewer visible pixels at 360 columns are not scored."""
GOOD_M = 0.005


@dataclass(frozen=True)
class ObjectScore:
    """One true object.

    Attributes:
        scenario, seed, name: which.
        target: it is the scenario's target.
        found: a fitted object matches.
        error: (4,) across, along, width, height in metres, NaN without a match.
        deviation: (4,) standard deviation of the draws, metres.
        misfit: of the fitted object.
        same: the fitted shape is the true one.
        pixels: visible.
    """

    scenario: str
    seed: int
    name: str
    target: bool
    found: bool
    error: NDArray[np.float64]
    deviation: NDArray[np.float64]
    misfit: float
    same: bool
    pixels: int


def score_scene(
    scenario: str,
    seed: int,
    image: LabImage,
    truth: Sequence[PlacedObject],
    target: str,
    fitted: FittedScene,
    right: NDArray[np.float64],
) -> list[ObjectScore]:
    """Compare a fitted scene with the true objects."""
    out = []
    least = LEAST_PIXELS * (image.camera.width / 360) ** 2
    centres = np.array([o.estimates[0].base_T_object[:2, 3] for o in fitted.objects]).reshape(-1, 2)
    forward = np.array([-right[1], right[0]])
    taken: set[int] = set()
    for placed in sorted(truth, key=lambda p: p.name != target):
        pixels = int(image.mask(placed.name).sum())
        if pixels < least:
            continue
        far = np.linalg.norm(centres - placed.position[:2], axis=1) if len(centres) else np.array([np.inf])
        for number in taken:
            far[number] = np.inf
        best = int(np.argmin(far))
        nothing = np.full(4, np.nan)
        if not far[best] < MATCH_M:
            out.append(
                ObjectScore(
                    scenario, seed, placed.name, placed.name == target, False, nothing, nothing, np.nan, False, pixels
                )
            )
            continue
        taken.add(best)
        found = fitted.objects[best]
        rows = _differences(found, placed, right, forward)
        weight = np.array([e.weight for e in found.estimates])
        mean = weight @ rows
        deviation = np.sqrt(weight @ (rows - mean) ** 2)
        same = found.estimates[0].shape == placed.object.shape
        out.append(
            ObjectScore(
                scenario, seed, placed.name, placed.name == target, True, rows[0], deviation, found.misfit, same, pixels
            )
        )
    return out


def _differences(
    found: FittedObject, placed: PlacedObject, right: NDArray[np.float64], forward: NDArray[np.float64]
) -> NDArray[np.float64]:
    rows = []
    for e in found.estimates:
        d = e.base_T_object[:2, 3] - placed.position[:2]
        width = np.sqrt(e.size[0] * e.size[1]) - np.sqrt(placed.object.size[0] * placed.object.size[1])
        rows.append(
            [
                right @ d,
                forward @ d,
                width,
                e.base_T_object[2, 3] + e.size[2] / 2 - placed.position[2] - placed.object.size[2] / 2,
            ]
        )
    return np.array(rows)


def lab_image(
    scenario: str, seed: int, camera: PinholeCamera, profile: str = CONSTANT
) -> tuple[LabSimulation, LabImage, NDArray[np.bool_]]:
    """Render the first image of a table, with its truth and the robot's mask."""
    lab = LabSimulation(scenario, seed, camera=camera, profile=profile)
    image = LabCamera.of(lab, camera, style=Style.varied(lab.scenario.style)).capture(lab, truth=True)
    segmentation = np.zeros(0) if image.segmentation is None else image.segmentation
    return lab, image, (segmentation > 0) & (segmentation <= len(lab.robot.links))


def _table(scores: Sequence[ObjectScore]) -> str:
    lines = [
        "| objects | n | missed | across mm, median / p90 | along | width | height | within 5 mm | in 95 % range | "
        "shape |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: list[tuple[str, list[ObjectScore]]] = []
    for name in sorted({s.scenario for s in scores}):
        groups.append((f"{name}, targets", [s for s in scores if s.scenario == name and s.target]))
        groups.append((f"{name}, all", [s for s in scores if s.scenario == name]))
    groups += [("all targets", [s for s in scores if s.target]), ("all", list(scores))]
    for name, part in groups:
        found = [s for s in part if s.found]
        if not found:
            lines.append(f"| {name} | {len(part)} | {len(part)} | | | | | | | |")
            continue
        e = np.abs(np.stack([s.error for s in found]))
        z = e / np.maximum(np.stack([s.deviation for s in found]), 1e-6)
        cells = [f"{1e3 * np.median(e[:, k]):.1f} / {1e3 * np.percentile(e[:, k], 90):.1f}" for k in range(4)]
        good = sum(
            (np.hypot(*s.error[:2]) < GOOD_M) and abs(s.error[2]) < GOOD_M and abs(s.error[3]) < GOOD_M for s in found
        )
        cover = " ".join(f"{(z[:, k] < 1.96).mean():.2f}" for k in range(4))
        same = np.mean([s.same for s in found])
        counts = f"{len(part)} | {len(part) - len(found)}"
        lines.append(f"| {name} | {counts} | {' | '.join(cells)} | {good / len(part):.2f} | {cover} | {same:.2f} |")
    return "\n".join(lines)


def overlay(image: LabImage, detection: Detection, fitted: FittedScene) -> NDArray[np.uint8]:
    """Draw the outlines of the fitted shapes over the image, beside the detector's faces."""
    factor = max(1, 720 // image.camera.width)
    camera = image.camera.scaled(factor * image.camera.width, factor * image.camera.height)
    picture = cv2.resize(image.rgb, (camera.width, camera.height), interpolation=cv2.INTER_CUBIC)
    faces = (255 * detection.faces[..., [2, 1, 0]]).astype(np.uint8)
    faces = np.asarray(cv2.resize(faces, (camera.width, camera.height), interpolation=cv2.INTER_NEAREST))
    faces[..., 2] = 0
    for thing in fitted.objects:
        best = thing.estimates[0]
        corners = _wire(best.shape, np.array(best.size)) @ best.base_T_object[:3, :3].T + best.base_T_object[:3, 3]
        T = camera.camera_T_base
        uv = camera.project(corners @ T[:3, :3].T + T[:3, 3])
        for a, b in uv.reshape(-1, 2, 2):
            cv2.line(picture, tuple(int(v) for v in a), tuple(int(v) for v in b), (255, 255, 255), 1, cv2.LINE_AA)
    return np.concatenate([np.asarray(picture, np.uint8), faces], 1)


def _wire(shape: str, size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return line segments (2 N, 3) of a shape, object frame."""
    half = size / 2
    turn = np.linspace(0, 2 * np.pi, 25)
    ring = np.stack([np.cos(turn), np.sin(turn)], 1) * half[:2]
    if shape == "sphere":
        rings = [
            np.column_stack([ring[:, 0], ring[:, 1], 0 * turn]),
            np.column_stack([ring[:, 0], 0 * turn, ring[:, 1]]),
        ]
        rings.append(np.column_stack([0 * turn, ring[:, 0], ring[:, 1]]))
    elif shape == "cylinder":
        rings = [np.column_stack([ring, np.full(25, z)]) for z in (-half[2], half[2])]
    else:
        square = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]]) * half[:2]
        rings = [np.column_stack([square, np.full(5, z)]) for z in (-half[2], half[2])]
        rings += [np.array([[*c, -half[2]], [*c, half[2]]]) for c in square[:4]]
    return np.concatenate([np.repeat(r, 2, axis=0)[1:-1] for r in rings])


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table of errors; with --picture also draw the fits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 40), help="first seed, and the one after the last")
    parser.add_argument(
        "--scenario", action="append", choices=scenario_names(), help="may be repeated; default: those on the table"
    )
    parser.add_argument("--width", type=int, default=360, help="columns of the image")
    parser.add_argument("--profile", default=CONSTANT, choices=profile_names(), help="physics and camera of the lab")
    parser.add_argument("--no-image", action="store_true", help="fit to the detector's labels alone, without colours")
    parser.add_argument("--weights", type=Path, help="folder of a detector (default: the package's)")
    parser.add_argument("--picture", type=Path, help="PNG of the fits")
    parser.add_argument("--verbose", action="store_true", help="list objects with errors above 5 mm")
    arguments = parser.parse_args(argv)
    settings = EvaluationSettings(policies=("expert",), models=("composite",), width=arguments.width)
    camera = evaluation_camera(settings)
    detector: Detector = load_detector(arguments.weights)
    scores: list[ObjectScore] = []
    pictures: list[NDArray[np.uint8]] = []
    seconds = []
    for scenario in arguments.scenario or TABLE_SCENARIOS:
        for seed in range(*arguments.seeds):
            lab, image, robot = lab_image(scenario, seed, camera, arguments.profile)
            state = lab.state()
            start = time.process_time()
            detection = detector.detect(image.rgb, camera, robot)
            middle = time.process_time()
            fitted = fit_outlines(detection, camera, robot, image=None if arguments.no_image else image.rgb)
            seconds.append((middle - start, time.process_time() - middle))
            made = score_scene(
                scenario, seed, image, list(state.objects.values()), state.target, fitted, detection.right
            )
            scores += made
            if arguments.verbose:
                _list(made, len(fitted.objects))
            if arguments.picture and len(pictures) < 12:
                pictures.append(overlay(image, detection, fitted))
    print(_table(scores))
    detect, fit = np.median(np.array(seconds), axis=0)
    print(f"CPU seconds, median: detect {detect:.2f}, fit {fit:.2f}")
    if arguments.picture:
        with replacing_file(arguments.picture) as temporary:
            temporary.write_bytes(encode_png(np.concatenate(pictures)))
        print(arguments.picture)
    return 0


def _list(scores: Sequence[ObjectScore], fitted: int) -> None:
    if fitted != len(scores):
        print(f"{scores[0].scenario} {scores[0].seed}: {len(scores)} objects, {fitted} fitted")
    for s in scores:
        if not s.found:
            print(f"{s.scenario} {s.seed} {s.name}: missed ({s.pixels} pixels){' TARGET' * s.target}")
        elif np.abs(s.error).max() > GOOD_M:
            error = " ".join(f"{1e3 * v:.1f}" for v in s.error)
            spread = " ".join(f"{1e3 * v:.1f}" for v in s.deviation)
            mark = " TARGET" * s.target
            print(
                f"{s.scenario} {s.seed} {s.name}: {error} (draws {spread}), misfit {s.misfit:.2f}, {s.pixels} px{mark}"
            )


if __name__ == "__main__":
    sys.exit(main())
