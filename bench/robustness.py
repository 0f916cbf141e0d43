"""Accuracy of failing offsets: those that `find_robustness` predicts from one image against those of the lab.

    python bench/robustness.py --seeds 40-45                     six tables of the canonical scenario
    python bench/robustness.py --seeds 40-79 --scenarios canonical,cluttered

For every table: a scripted pick of the target, its failing offset in four directions predicted from image and measured
depth; then the same commands in the lab, with all objects shifted by the same offsets, searched in the same way.
Baselines, with the true shape: along the closing axis half of (gripper opening - width of the object), across it half
of the object's extent plus half of the pads' width.

Directions in which lab and prediction both succeed at all offsets are counted, not compared; if only one of them fails,
the other counts as the end of the sweep. The last line is JSON; millimetres.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.generators import CommandedMotion, GenerateRequest
from kinema4d_ros.generators.carry import find_grasps
from kinema4d_ros.generators.draft.generator import DraftGenerator
from kinema4d_ros.generators.draft.robustness import (
    COARSE,
    HALVINGS,
    REACH_M,
    Margin,
    find_robustness,
    sweep_direction,
)
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.kinematics.gripping import finger_shape, grip_track
from kinema4d_ros.lab.scripted import pick_plan
from kinema4d_ros.physics.objects import parts_of
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.worlds import LabWorld

WIDTH, HEIGHT = 360, 240
FRAMES = 49


def lab_offset(world: LabWorld, plan, task, direction: np.ndarray, at_zero: bool) -> float:
    """Search the failing offset of the lab itself, metres, as `find_robustness` does; infinite = none."""
    if not at_zero:
        return 0.0
    share = {0.0: 1.0}
    for step in range(1, COARSE + 1):
        offset = REACH_M * step / COARSE
        share[offset] = float(lab_succeeds(world, plan, task, direction * offset))
        if not share[offset]:
            break
    for _ in range(HALVINGS):
        good, bad = sweep_direction(share)
        if math.isinf(bad):
            return math.inf
        share[(good + bad) / 2] = float(lab_succeeds(world, plan, task, direction * (good + bad) / 2))
    return sum(sweep_direction(share)) / 2


def lab_succeeds(world: LabWorld, plan, task, shift: np.ndarray) -> bool:
    lab = world.lab
    lab.reset(lab.scenario.name, lab.scenario.seed)
    for name, placed in lab.state().objects.items():
        pose = placed.base_T_object.copy()
        pose[:3, 3] += shift
        lab.move_object(name, pose)
    before = lab.state().objects[task.target].base_T_object
    after = lab.run(plan).objects[task.target].base_T_object
    return bool(task.outcome(np.stack([before, after])).success)


def baseline(world: LabWorld, plan, margin: Margin) -> float:
    """Return the margin by geometry alone, metres."""
    robot = world.kinematics.robot
    placed = world.start.objects[world.start.target]
    corners = np.concatenate([part.corners() for part in parts_of(placed.object)])
    extent = float(np.ptp(apply(placed.base_T_object, corners) @ margin.direction))
    if not margin.closing:
        return (extent + finger_shape(robot).pad_width_m) / 2
    grip = grip_track(robot, plan.for_robot(robot))
    away = [np.linalg.norm(grip.base_T_grip[g.closed, :3, 3] - placed.position) for g in find_grasps(grip)]
    grasp = find_grasps(grip)[int(np.argmin(away))]
    return (float(grip.width_m[grasp.start]) - extent) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="40-45", metavar="FIRST-LAST", help="tables (default: 40-45)")
    parser.add_argument("--scenarios", default="canonical")
    parser.add_argument("--profile", default="constant")
    parser.add_argument("--threads", type=int, help="of the simulation (default: all cores)")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    robot = Robot.load("yam")
    kinematics = choose_kinematics(robot)
    camera = read_camera(share_path("calibration/demo_lab.yaml")).rectified().scaled(WIDTH, HEIGHT)
    generator = DraftGenerator(threads=arguments.threads)
    rows: list[tuple[bool, float, float, float]] = []
    beyond = told_not = skipped = tables = 0
    probabilities, spent_s = [], 0.0
    for scenario in arguments.scenarios.split(","):
        for seed in range(int(first), int(last or first) + 1):
            world = LabWorld.of(scenario, seed, camera, kinematics, profile=arguments.profile)
            try:
                plan = pick_plan(world.start, world.start.target, kinematics)
            except KinemaError as error:
                print(f"{scenario} {seed}: no plan: {error}")
                skipped += 1
                continue
            drawn = render_pointmaps(robot, plan.resample(FRAMES), world.scene.camera, rgb=True)
            motion = CommandedMotion.of(robot, plan)
            request = GenerateRequest(world.scene.image, drawn, world.scene.depth_m, motion=motion)
            generator.scene_of(request)
            task = world.task("pick")
            begun = time.process_time()
            found = find_robustness(generator, request, task)
            spent_s += time.process_time() - begun
            tables += 1
            if not found.known:
                print(f"{scenario} {seed}: {found.sentence()}")
                told_not += 1
                continue
            at_zero = lab_succeeds(world, plan, task, np.zeros(3))
            probabilities.append((found.probability, at_zero))
            words = []
            for margin in found.margins:
                true = lab_offset(world, plan, task, margin.direction, at_zero)
                told = 1000 * min(margin.offset_m, REACH_M)
                plain = 1000 * min(max(baseline(world, plan, margin), 0.0), REACH_M)
                words.append(f"{margin.name} {told:.1f} lab {1000 * min(true, REACH_M):.1f} geometry {plain:.1f}")
                if math.isinf(true) and math.isinf(margin.offset_m):
                    beyond += 1
                    continue
                rows.append((margin.closing, told, 1000 * min(true, REACH_M), plain))
            print(f"{scenario} {seed}: p {found.probability:.2f}; {'; '.join(words)}", flush=True)
    print(json.dumps(_summary(rows, probabilities, arguments) | {
        "tables": tables, "cannot_tell": told_not, "without_plan": skipped, "both_beyond": beyond,
        "cpu_s_a_table": round(spent_s / max(tables, 1), 1),
    }))  # fmt: skip


def _summary(rows: list, probabilities: list, arguments: argparse.Namespace) -> dict[str, object]:
    out: dict[str, object] = {
        "scenarios": arguments.scenarios,
        "seeds": arguments.seeds,
        "profile": arguments.profile,
        "reach_mm": 1000 * REACH_M,
    }
    for name, wanted in (("", (True, False)), ("closing_", (True,)), ("across_", (False,))):
        part = np.array([row[1:] for row in rows if row[0] in wanted]).reshape(-1, 3)
        told, plain = np.abs(part[:, 0] - part[:, 1]), np.abs(part[:, 2] - part[:, 1])
        if not len(part):
            continue
        out |= {
            f"{name}directions": len(part),
            f"{name}median_mm": round(float(np.median(told)), 2),
            f"{name}p90_mm": round(float(np.quantile(told, 0.9)), 2),
            f"{name}baseline_median_mm": round(float(np.median(plain)), 2),
            f"{name}ratio": round(float(np.median(told) / max(np.median(plain), 1e-9)), 3),
        }
    if probabilities:
        p, y = np.array(probabilities, dtype=np.float64).T
        out |= {"brier": round(float(np.mean((p - y) ** 2)), 4), "lab_success": round(float(y.mean()), 3)}
    return out


if __name__ == "__main__":
    main()
