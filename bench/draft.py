"""Time of a 49-frame draft by stage, from measured depth and from RGB, against plain MuJoCo and nano in the same run.

    python bench/draft.py                        720 x 480, three scenes of the lab, medians of 3 runs each
    python bench/draft.py --detector FOLDER      from RGB with these weights (default: those of the package, if any)
    python bench/draft.py --quick                a smaller image, one scene, one run

Stages: detect (RGB only), fit, build (MuJoCo models of all members), simulate, scene (empty table, lamp, colours), draw
(all frames of all shown outcomes), rest (hash of the request, checks); refine = the network's stages of `draft+nano`.
Nothing is kept from an earlier run. The scene is prepared while the members are simulated, so wall times of build,
simulate and scene cannot be told apart; their CPU times are measured again alone.

Peers: a plain loop around `mujoco.mj_step` that simulates the same members one after the other without the ensemble
code; and the nano generator with the same request, without depth.

CPU seconds are those of all threads and can be compared on a busy machine too; wall seconds only on a quiet one. The
last line is JSON; `ratio` is the motion's duration over the draft's wall time with depth: above 1 is faster than the
motion, and the aim is 2. `cpu_ratio` is the same over its CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import mujoco
import numpy as np

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.generators import CommandedMotion, GenerateRequest, Generator, Progress, load_generator
from kinema4d_ros.generators.draft.detection import has_detector, load_detector
from kinema4d_ros.generators.draft.draw import SceneDrawer
from kinema4d_ros.generators.draft.generator import DraftGenerator, Simulated, require_motion
from kinema4d_ros.generators.draft.members import open_room
from kinema4d_ros.generators.draft.outlines import OutlineOptions, fit_outlines
from kinema4d_ros.generators.draft.scene import FittedScene
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.lab.scripted import pick_plan
from kinema4d_ros.physics.ensemble import STEP_S, Member
from kinema4d_ros.physics.model import build_model, place_arm
from kinema4d_ros.physics.settling import SETTLE_S
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.worlds import LabWorld

FRAMES = 49

Spent = dict[str, tuple[float, float]]
"""Wall and CPU seconds by stage."""


class Clock:
    """Wall and CPU seconds by stage."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, stage: str, wall_s: float, cpu_s: float) -> None:
        self.spent[stage][0] += wall_s
        self.spent[stage][1] += cpu_s

    @contextmanager
    def stage(self, name: str, inside: str = "", *, beside: bool = False) -> Iterator[None]:
        """Measure a stage that is part of another one; one that ran `beside` it took none of its wall time."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        wall, cpu = 0.0 if beside else time.perf_counter() - wall, time.process_time() - cpu
        self.add(name, wall, cpu)
        if inside:
            self.add(inside, -wall, -cpu)


def lab_request(scenario: str, seed: int, width: int, height: int) -> GenerateRequest:
    """Make the request of a preview of a scripted pick, with measured depth."""
    robot = Robot.load("yam")
    kinematics = choose_kinematics(robot)
    camera = read_camera(share_path("calibration/demo_lab.yaml")).rectified().scaled(width, height)
    world = LabWorld.of(scenario, seed, camera, kinematics)
    plan = pick_plan(world.start, world.start.target, kinematics)
    drawn = render_pointmaps(robot, plan.resample(FRAMES), world.scene.camera, rgb=True)
    return GenerateRequest(world.scene.image, drawn, world.scene.depth_m, motion=CommandedMotion.of(robot, plan))


def by_phase(generator: Generator, request: GenerateRequest, clock: Clock) -> None:
    """Generate once, and add the time of each phase to the clock."""
    phase, wall, cpu = "rest", time.perf_counter(), time.process_time()

    def tell(progress: Progress) -> None:
        nonlocal phase, wall, cpu
        now, used = time.perf_counter(), time.process_time()
        clock.add(phase, now - wall, used - cpu)
        done = progress.steps and progress.step == progress.steps
        phase, wall, cpu = "rest" if done else progress.phase, now, used

    generator.generate(request, tell)
    clock.add(phase, time.perf_counter() - wall, time.process_time() - cpu)


def draft_once(request: GenerateRequest, detector: Path | None) -> tuple[Spent, Simulated]:
    """Draft once, without anything kept from an earlier request; from RGB with a detector."""
    clock = Clock()

    def from_rgb(request: GenerateRequest, cancel: object) -> FittedScene:
        mask = request.robot.link_ids[0] != 0
        with clock.stage("detect", "fit"):
            found = load_detector(detector).detect(request.image, request.camera, mask, 0.0)
        options = OutlineOptions(seed=request.seed)
        return fit_outlines(found, request.camera, mask, 0.0, options, image=request.image)

    generator = DraftGenerator(fit=from_rgb) if request.depth is None else DraftGenerator()
    by_phase(generator, request, clock)
    made = generator.simulate(request)
    with clock.stage("build", "simulate", beside=True):
        build(request, made)
    with clock.stage("scene", "simulate", beside=True):
        motion = require_motion(request)
        SceneDrawer(
            request.image,
            request.robot,
            made.scene,
            depth=request.depth,
            model=motion.robot,
            base_T_link=forward_all(motion.robot, motion.commands.at(request.times[:1]))[0],
        )
    return {stage: (wall, cpu) for stage, (wall, cpu) in clock.spent.items()}, made


def build(request: GenerateRequest, made: Simulated) -> list[mujoco.MjModel]:
    """Compile the models of all members, one after the other."""
    robot, room = require_motion(request).robot, open_room(made.scene.table_height_m)
    models = [build_model(robot, m.objects, m.materials, room, STEP_S) for m in made.members]
    for model in models:
        model.opt.solver = mujoco.mjtSolver.mjSOL_CG
    return models


def plain_loop(request: GenerateRequest, made: Simulated) -> None:
    """Simulate the members one after the other with `mj_step`, as a script without the ensemble code would."""
    for member, model in zip(made.members, build(request, made), strict=True):
        _step_through(request, member, model)


def _step_through(request: GenerateRequest, member: Member, model: mujoco.MjModel) -> None:
    motion = require_motion(request)
    data = mujoco.MjData(model)
    place_arm(model, data, motion.robot, motion.commands.positions[0])
    data.ctrl[:] = motion.commands.positions[0]
    mujoco.mj_step(model, data, nstep=round(SETTLE_S / STEP_S))
    clock = request.times[0] + STEP_S * np.arange(round((request.times[-1] - request.times[0]) / STEP_S))
    controls = motion.commands.at(np.maximum(clock - member.delay_s, request.times[0]))
    for control in controls:
        data.ctrl[:] = control
        mujoco.mj_step(model, data)


def generate_once(generator: Generator, request: GenerateRequest) -> Spent:
    """Generate once, by phase."""
    clock = Clock()
    by_phase(generator, request, clock)
    return {stage: (wall, cpu) for stage, (wall, cpu) in clock.spent.items()}


def once(work: Callable[[], object]) -> Spent:
    """Measure one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return {"steps": (time.perf_counter() - wall, time.process_time() - cpu)}


def total(spent: Spent) -> tuple[float, float]:
    """Return wall and CPU seconds of all stages."""
    return sum(wall for wall, _ in spent.values()), sum(cpu for _, cpu in spent.values())


def medians(runs: list[Spent]) -> Spent:
    """Return the median of each stage, and of the whole as "all"."""
    runs = [{**run, "all": total(run)} for run in runs]
    stages = dict.fromkeys(stage for run in runs for stage in run)
    values = {stage: np.array([run.get(stage, (0.0, 0.0)) for run in runs]) for stage in stages}
    return {
        stage: (float(wall), float(cpu)) for stage, (wall, cpu) in ((s, np.median(v, 0)) for s, v in values.items())
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller image, one scene, one run")
    parser.add_argument("--detector", type=Path, help="folder of a detector's weights")
    parser.add_argument("--runs", type=int, default=3, help="of each scene (default: 3)")
    parser.add_argument("--scenes", default="canonical:0,cluttered:1,dynamic:2", help="scenario:seed, comma-separated")
    arguments = parser.parse_args()
    size, runs, scenes = (720, 480), arguments.runs, arguments.scenes.split(",")
    if arguments.quick:
        size, runs, scenes = (240, 160), 1, scenes[:1]
    requests = [lab_request(name, int(seed), *size) for name, _, seed in (one.partition(":") for one in scenes)]
    model = find_spec("torch") is not None and find_spec("kinema4d_model") is not None
    rgb = arguments.detector is not None or has_detector()
    nano = load_generator("nano", device="cpu") if model else None
    both = load_generator("draft+nano", device="cpu") if model else None
    found: dict[str, list[Spent]] = defaultdict(list)
    for request in requests:
        alone = replace(request, depth=None)
        # The first run compiles and loads; it does not count.
        for run in range(runs + 1):
            spent, made = draft_once(request, None)
            rows = {"draft, depth": spent, "plain MuJoCo": once(partial(plain_loop, request, made))}
            if rgb:
                rows["draft, RGB"] = draft_once(alone, arguments.detector)[0]
            if nano is not None:
                rows["nano"] = generate_once(nano, alone)
            if both is not None:
                # The stages after the draft: what the network adds.
                whole = generate_once(both, request)
                kept = ("encode", "sample", "blend")
                rows["refine"] = {stage: values for stage, values in whole.items() if stage in kept}
            if run:
                for name, row in rows.items():
                    found[name].append(row)
    motion_s = statistics.median(float(request.times[-1] - request.times[0]) for request in requests)
    tables = {name: medians(rows) for name, rows in found.items()}
    print(
        f"{FRAMES} frames of {size[0]} x {size[1]}, motions of {motion_s:.2f} s, {len(requests)} scenes, {runs} runs;"
    )
    print(f"load average {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores; wall (CPU) seconds")
    for name, table in tables.items():
        wall, cpu = table["all"]
        stages = ", ".join(f"{k} {w:.2f} ({c:.2f})" for k, (w, c) in table.items() if k != "all")
        print(f"{name:13} {wall:6.2f} ({cpu:.2f}): {stages}")
    depth, plain = tables["draft, depth"], tables["plain MuJoCo"]
    simulated = depth["build"][1] + depth["simulate"][1]
    summary = {
        "motion_s": round(motion_s, 3),
        "pixels": size[0] * size[1],
        "scenes": scenes,
        "wall_s": {name: round(table["all"][0], 3) for name, table in tables.items()},
        "cpu_s": {name: round(table["all"][1], 3) for name, table in tables.items()},
        "stages_cpu_s": {
            name: {stage: round(cpu, 3) for stage, (_, cpu) in table.items() if stage != "all"}
            for name, table in tables.items()
        },
        "simulation_over_plain": round(simulated / plain["all"][1], 3),
        "ratio": round(motion_s / depth["all"][0], 3),
        "cpu_ratio": round(motion_s / depth["all"][1], 3),
    }
    if "nano" in tables:
        summary["draft_over_nano_cpu"] = round(depth["all"][1] / tables["nano"]["all"][1], 3)
    if not rgb:
        summary["not_measured"] = "from RGB: no weights of a detector"
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
