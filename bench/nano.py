"""Time of a 49-frame rollout of the shipped nano model by stage, against the motion and the composite.

    python bench/nano.py            720 x 480, the lab's pick, first image only (depth is estimated)
    python bench/nano.py --quick    a smaller image, one run

The last line is JSON; `ratio` is the motion's duration over the rollout's: above 1 is faster than the motion.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict

import numpy as np

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.generators import GenerateRequest, Progress, load_generator
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.lab import LabCamera, LabSimulation
from kinema4d_ros.lab.scripted import pick_plan
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot

FRAMES = 49


def lab_request(width: int, height: int) -> GenerateRequest:
    """Make the request of a preview of the lab's pick: one image, and the robot along the plan."""
    robot = Robot.load("yam")
    camera = read_camera(share_path("calibration/demo_lab.yaml"), base_frame=robot.base_link).rectified()
    camera = camera.scaled(width, height)
    state = LabSimulation("canonical", seed=0, robot=robot).state()
    plan = pick_plan(state, state.target, choose_kinematics(robot)).resample(FRAMES)
    image = LabCamera(robot, camera).capture(state).rgb
    return GenerateRequest(image, render_pointmaps(robot, plan, camera, rgb=True))


def measure(name: str, options: dict[str, object], request: GenerateRequest, runs: int) -> dict[str, float]:
    """Measure the median seconds of each phase and of the whole, wall clock and CPU."""
    generator = load_generator(name, **options)
    generator.generate(request)
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(runs):
        spent: dict[str, float] = defaultdict(float)
        began = last = time.perf_counter()
        cpu = time.process_time()
        phase = "prepare"

        def tell(progress: Progress, spent: dict[str, float] = spent) -> None:
            nonlocal last, phase
            now = time.perf_counter()
            spent[phase] += now - last
            last, phase = now, progress.phase

        generator.generate(request, tell)
        spent[phase] += time.perf_counter() - last
        for key, seconds in spent.items():
            found[key].append(seconds)
        found["all"].append(time.perf_counter() - began)
        found["cpu"].append(time.process_time() - cpu)
    return {key: statistics.median(values) for key, values in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller image, one run")
    parser.add_argument("--checkpoint", default="", help="folder of other weights")
    arguments = parser.parse_args()
    size, runs = ((240, 160), 1) if arguments.quick else ((720, 480), 5)
    request = lab_request(*size)
    motion_s = float(request.times[-1] - request.times[0])
    nano = measure("nano", {"checkpoint": arguments.checkpoint, "device": "cpu"}, request, runs)
    still = measure("composite", {}, request, runs)
    print(f"{FRAMES} frames of {size[0]} x {size[1]}, a motion of {motion_s:.2f} s, medians of {runs}")
    for name, table in (("nano", nano), ("composite", still)):
        stages = ", ".join(f"{k} {v:.2f}" for k, v in table.items() if k not in ("all", "cpu"))
        print(f"{name:10} {table['all']:.2f} s (CPU {table['cpu']:.2f} s): {stages}")
    print(
        json.dumps(
            {
                "motion_s": round(motion_s, 3),
                "nano_s": round(nano["all"], 3),
                "composite_s": round(still["all"], 3),
                "times_the_composite": round(nano["all"] / still["all"], 2),
                "ratio": round(motion_s / nano["all"], 2),
                "pixels": int(np.prod(size)),
            }
        )
    )


if __name__ == "__main__":
    main()
