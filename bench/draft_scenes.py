"""Drafts from measured depth of stacks, of objects in the gripper at the start, and of pushes, against the lab.

    python bench/draft_scenes.py --scenarios stacked,held --seeds 0-13
    python bench/draft_scenes.py --scenarios canonical,cluttered,dynamic --plans push --seeds 0-19
    python bench/draft_scenes.py --scenarios stacked,held --seeds 100-119 --judge-truth --oracle

Every table gets some of its scenario's plans, in turn: scripted picks, pushes and places with errors of various sizes.
The lab runs them; the draft sees the first image, its depth and the commands. Verdicts are those of the geometric judge
on the draft's frames, as in `kinema4d evaluate`; "internal" are those of the simulated members themselves. Pushed
objects are those that the lab moved along the table by more than a centimetre. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.core.trajectory import FRAMES
from kinema4d_ros.evaluation.judges import GeometricJudge, Verdict
from kinema4d_ros.generators.draft.generator import DraftGenerator, Simulated
from kinema4d_ros.generators.protocol import CommandedMotion, GenerateRequest
from kinema4d_ros.io.png import encode_png
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.policies.registry import make_policy
from kinema4d_ros.render import render_pointmaps
from kinema4d_ros.robot import Robot
from kinema4d_ros.worlds import LabWorld, ModelWorld, Run, true_rollout
from kinema4d_ros.worlds.truth import scene_from_truth

WIDTH, HEIGHT = 360, 240
MOVED_M, RAISED_M = 0.010, 0.010
"""An object is pushed if it moved farther than the first on the table and rose by less than the second."""
MATCHED_M = 0.03
"""A fitted object is the lab's object nearest to it, within this distance."""
ALL_PLANS = {
    "stacked": "pick/expert,pick/expert:offset_m=0.025,push/expert,pick/expert:offset_m=0.02,"
    "place/expert,push/expert:offset_m=0.03,pick/expert:early_release=0.5",
    "held": "place/expert,place/expert:early_release=0.6,pick/expert,place/expert:offset_m=0.015,"
    "pick/expert:early_release=0.4,place/expert:offset_m=0.045",
}
"""Plans of a scenario, TASK/POLICY; the other scenarios have those of `stacked`."""


class Recorder(DraftGenerator):
    """Draft that keeps what it simulated last."""

    made: Simulated

    def simulate(self, request: GenerateRequest, progress=None, cancel=None) -> Simulated:
        """Simulate as the draft does."""
        self.made = super().simulate(request, progress, cancel)
        return self.made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", default="stacked,held")
    parser.add_argument("--seeds", default="0-13", metavar="FIRST-LAST")
    parser.add_argument("--plans", default="", help="TASK/POLICY,... or a TASK (default: the scenario's own)")
    parser.add_argument("--each", type=int, default=3, help="plans of a table (default: 3)")
    parser.add_argument("--profile", default="constant")
    parser.add_argument("--frames", type=int, default=FRAMES)
    parser.add_argument("--threads", type=int, help="of the simulation (default: all cores)")
    parser.add_argument("--undrawn", action="store_true", help="no frames: the members' own verdicts only, for a look")
    parser.add_argument("--oracle", action="store_true", help="also drafts with true shapes and poses")
    parser.add_argument("--judge-truth", action="store_true", help="also the judge on the lab's own frames")
    parser.add_argument("--save", metavar="DIR", help="write a strip of every wrong verdict")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    kinematics = choose_kinematics(Robot.load("yam"))
    camera = read_camera(share_path("calibration/demo_lab.yaml")).rectified().scaled(WIDTH, HEIGHT)
    draft = Recorder(threads=arguments.threads)
    rows: list[dict] = []
    for scenario in arguments.scenarios.split(","):
        plans = ALL_PLANS.get(scenario, ALL_PLANS["stacked"])
        if "/" in arguments.plans:
            plans = arguments.plans
        chosen = [p for p in plans.split(",") if "/" in arguments.plans or p.startswith(arguments.plans)]
        for seed in range(int(first), int(last or first) + 1):
            world = LabWorld.of(scenario, seed, camera, kinematics, profile=arguments.profile)
            for k in range(min(arguments.each, len(chosen))):
                plan = chosen[(seed * arguments.each + k) % len(chosen)]
                try:
                    rows.append(episode(world, plan, scenario, seed, draft, arguments))
                except KinemaError as error:
                    print(f"{scenario} {seed} {plan}: {error}", flush=True)
                    continue
                print(line(rows[-1]), flush=True)
    print(json.dumps({"seeds": arguments.seeds, "profile": arguments.profile} | summary(rows)))


def episode(world: LabWorld, plan: str, scenario: str, seed: int, draft: Recorder, arguments) -> dict:
    """Run a plan in the lab and in a draft."""
    kind, _, spec = plan.partition("/")
    task = world.task(kind)
    # In one chunk: the expert does not look at images.
    run = world.run(make_policy(f"{spec}{',' if ':' in spec else ':'}chunk_s=0"), task, seed=seed)
    model = ModelWorld(world.scene, draft, world.kinematics, depth=True, frames=arguments.frames)
    began = time.process_time()
    if arguments.undrawn:
        drawn = render_pointmaps(world.kinematics.robot, run.commands.resample(arguments.frames), world.scene.camera)
        motion = CommandedMotion.of(world.kinematics.robot, run.commands)
        request = GenerateRequest(world.scene.image, drawn, world.scene.depth_m, seed=seed, motion=motion)
        made = draft.simulate(request)
        share = internal(made, world, task)
        verdict = None if share is None else share > 0.5
        told = Verdict(None if made.unknowns else verdict, 0.0, 0.0, 0, None, "; ".join(made.unknowns), forced=verdict)
        predicted = Run(run.commands, told)
    else:
        predicted = model.run(run.commands, task, seed=seed)
    row = {
        "scenario": scenario, "seed": seed, "plan": plan, "lab": run.verdict.success,
        "judged": predicted.verdict.success, "forced": predicted.verdict.forced,
        "p": predicted.verdict.probability, "internal": internal(draft.made, world, task),
        "says": draft.made.outcomes[0].label, "reason": predicted.verdict.reason,
        "misfits": [round(o.misfit, 2) for o in draft.made.scene.objects],
        "cpu_s": time.process_time() - began, "pushed_mm": pushed(draft.made, world, run),
        "role": role(world),
    }  # fmt: skip
    if arguments.oracle:
        held = (world.start.target,) if world.lab.scenario.held_m is not None else ()
        image = world.eye.capture(world.start, truth=True)
        scene = scene_from_truth(world.start, image, room=world.lab.room, held=held)
        oracle = Recorder(threads=arguments.threads, fit=lambda request, cancel: scene)
        known = ModelWorld(world.scene, oracle, world.kinematics, depth=True, frames=arguments.frames)
        row["oracle"] = known.run(run.commands, task, seed=seed).verdict.success
        row["oracle_internal"] = internal(oracle.made, world, task)
    if arguments.judge_truth:
        truth = true_rollout(world, run, arguments.frames)
        row["truth"] = GeometricJudge().judge(truth, task, world.scene.target_mask).success
    if arguments.save and row["judged"] is not row["lab"] and predicted.rollout is not None:
        save(world, run, predicted.rollout, f"{arguments.save}/{scenario}_{seed}_{plan.replace('/', '_')}.png")
    return row


def role(world: LabWorld) -> str:
    """Return what the target is in its scene."""
    if world.lab.scenario.held_m is not None:
        return "held"
    placed = world.start.objects[world.start.target]
    raised = placed.position[2] - placed.object.height / 2 > RAISED_M
    return "upper" if raised else "lower" if world.lab.scenario.name == "stacked" else "target"


def columns(made: Simulated, world: LabWorld) -> dict[str, int]:
    """Return the fitted object of every object of the lab, by position."""
    found = {}
    for name, placed in world.start.objects.items():
        away = [np.linalg.norm(o.estimates[0].base_T_object[:3, 3] - placed.position) for o in made.scene.objects]
        if away and min(away) < MATCHED_M:
            found[name] = int(np.argmin(away))
    return found


def internal(made: Simulated, world: LabWorld, task) -> float | None:
    """Return the share of members that succeed; None if the target was not fitted."""
    column = columns(made, world).get(task.target)
    if column is None:
        return None
    return float(np.mean([bool(task.outcome(run.base_T_object[:, column]).success) for run in made.runs]))


def pushed(made: Simulated, world: LabWorld, run) -> list[float]:
    """Return the errors of the final positions of pushed objects in the representative member, mm; NaN = not fitted."""
    member, found, errors = made.runs[made.outcomes[0].representative], columns(made, world), []
    for name, placed in run.states[-1].objects.items():
        path = np.stack([state.objects[name].position for state in run.states])
        moved = np.linalg.norm((path - path[0])[:, :2], axis=1)
        if moved[-1] < MOVED_M or np.abs(path[:, 2] - path[0, 2]).max() > RAISED_M:
            continue
        end = member.base_T_object[-1, found[name], :3, 3] if name in found else np.full(3, np.nan)
        errors.append(1000 * float(np.linalg.norm(end - placed.position)))
    return errors


def line(row: dict) -> str:
    """Return a row as text."""
    good = "ok   " if row["judged"] is row["lab"] else "WRONG" if row["judged"] is not None else "?    "
    words = [good, row["scenario"], str(row["seed"]), row["role"], row["plan"], f"lab {row['lab']}"]
    words += [
        f"draft {row['judged']} (forced {row['forced']}) p {row['p'] if row['p'] is None else round(row['p'], 2)}"
    ]
    words += [f"internal {row['internal']}", f"'{row['says']}'"]
    words += [f"misfits {row['misfits']} {row['cpu_s']:.1f} CPU s"]
    words += [f"{name} {row[name]}" for name in ("oracle", "oracle_internal", "truth") if name in row]
    words += [f"pushed {[round(e) for e in row['pushed_mm'] if np.isfinite(e)]}"] if row["pushed_mm"] else []
    words += [f"({row['reason']})"] if row["judged"] is not row["lab"] else []
    return " ".join(words)


def summary(rows: list[dict]) -> dict:
    """Return agreement by scenario, and errors of pushes."""
    out: dict = {}
    for scenario in dict.fromkeys(row["scenario"] for row in rows):
        mine = [row for row in rows if row["scenario"] == scenario]
        out[scenario] = score(mine)
        for which in dict.fromkeys(row["role"] for row in mine):
            out[scenario][which] = score([row for row in mine if row["role"] == which])["agreement"]
    errors = np.array([e for row in rows for e in row["pushed_mm"]])
    if len(errors):
        known = errors[np.isfinite(errors)]
        median, p90 = np.quantile(known, [0.5, 0.9]).round(2).tolist()
        lost = int(np.isnan(errors).sum())
        out["pushed"] = {"objects": len(errors), "not_fitted": lost, "median_mm": median, "p90_mm": p90}
    return out


def score(rows: list[dict]) -> dict:
    lab = np.array([bool(row["lab"]) for row in rows])
    out = {"episodes": len(rows), "lab_success": round(float(lab.mean()), 3)}
    for name in ("judged", "oracle", "truth"):
        if all(name in row for row in rows):
            right = [row[name] is row["lab"] for row in rows]
            out["agreement" if name == "judged" else name] = round(float(np.mean(right)), 3)
    for name in ("internal", "oracle_internal"):
        if all(name in row for row in rows):
            right = [row[name] is not None and (row[name] > 0.5) == row["lab"] for row in rows]
            out[name] = round(float(np.mean(right)), 3)
    p = [(row["p"], row["lab"]) for row in rows if row["p"] is not None]
    out["brier"] = round(float(np.mean([(a - b) ** 2 for a, b in p])), 4) if p else None
    out["cannot_tell"] = sum(row["judged"] is None for row in rows)
    failures = [row for row in rows if not row["lab"]]
    out["false_success"] = f"{sum(row['judged'] is True for row in failures)} of {len(failures)}"
    out["cpu_s"] = round(float(np.mean([row["cpu_s"] for row in rows])), 2)
    return out


def save(world: LabWorld, run, rollout, path: str) -> None:
    """Write six frames of the lab above those of the draft."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    at = np.linspace(0, 1, 6)
    real = [world.picture(run.states[round(a * (len(run.states) - 1))]).rgb for a in at]
    drawn = [rollout.rgb[round(a * (len(rollout.rgb) - 1))] for a in at]
    picture = np.concatenate([np.concatenate(real, 1), np.concatenate(drawn, 1)], 0)
    Path(path).write_bytes(encode_png(np.ascontiguousarray(picture)))


if __name__ == "__main__":
    main()
