"""`kinema4d policy`: list, try, serve and train policies.

list    list the kinds of policies
try     run episodes in the lab, optionally with a strip of images
serve   serve a policy on a websocket
demos   record demonstrations of the lab's expert; resumes an interrupted run
train   train a small Diffusion Policy on demonstrations; resumes an interrupted run
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import cv2
import numpy as np
from tqdm import tqdm

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.core.task import LAB_TASKS
from kinema4d_ros.io.images import write_image
from kinema4d_ros.policies.protocol import Observation, PolicyError
from kinema4d_ros.policies.registry import make_policy, policy_kinds
from kinema4d_ros.robot import Robot
from kinema4d_ros.runtime.pool import ENGINES

__all__ = ["register"]

_ABOUT = {
    "diffusion": "diffusion:FOLDER[,steps=8]                     a small Diffusion Policy of `kinema4d policy train`",
    "expert": "expert[:offset_m=0.02,delay_s=0.5,...]         the lab's scripted expert, with optional errors",
    "lerobot": "lerobot:FOLDER[,hz=10,view=workspace]          a saved LeRobot policy (make setup-lerobot)",
    "python": "python:MODULE:CLASS[,option=value]             a class of your own",
    "remote": "remote:HOST:PORT[,style=openpi]                a policy server",
    "replay": "replay:FILE[,episode=0,speed=1]                recorded actions: NPZ, CSV, JSON, LeRobot, MCAP",
}


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "policy",
        help="list, try, serve and train policies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="list the kinds of policies").set_defaults(run=_list)

    once = actions.add_parser("try", help="run episodes in the lab")
    add = once.add_argument
    add("spec", metavar="SPEC", help="such as expert:offset_m=0.02; see `kinema4d policy list`")
    add("--scenario", default="canonical", help="default: canonical")
    add("--task", default="pick", choices=LAB_TASKS, help="default: pick")
    add("--seed", type=int, default=0, help="seed of the scene and the policy (default: 0)")
    add("--episodes", type=int, default=1, metavar="N", help="episodes, with consecutive seeds (default: 1)")
    add("--limit", type=float, default=20.0, metavar="S", help="longest episode (default: 20)")
    add("--robot", default="yam", metavar="NAME|FILE", help="default: yam")
    add("--strip", type=Path, metavar="FILE", help="write the policy's images of the last episode, .png")
    once.set_defaults(run=_try)

    serve = actions.add_parser("serve", help="serve a policy on a websocket")
    add = serve.add_argument
    add("spec", metavar="SPEC")
    add("--host", default="127.0.0.1", help="default: loopback; other addresses need the token variable")
    add("--port", type=int, default=8765, help="default: 8765; 0 = any free port")
    add("--robot", default="yam", metavar="NAME|FILE", help="default: yam")
    serve.set_defaults(run=_serve)

    demos = actions.add_parser("demos", help="record demonstrations of the lab's expert")
    add = demos.add_argument
    add("--out", type=Path, required=True, metavar="DIR")
    add("--scenario", default="canonical", help="default: canonical")
    add("--episodes", type=int, default=300, metavar="N", help="default: 300")
    add("--seed", type=int, default=0, help="default: 0")
    add("--workers", type=int, default=1, metavar="N", help="worker processes (default: 1)")
    add("--engine", default="local", help=f"where workers run: {ENGINES} (default: local)")
    demos.set_defaults(run=_demos)

    train = actions.add_parser("train", help="train a small Diffusion Policy on demonstrations")
    add = train.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="output of `kinema4d policy demos`")
    add("--out", type=Path, required=True, metavar="DIR", help="output folder, with policy/ and checkpoints/")
    add("--steps", type=int, default=6000, metavar="N", help="default: 6000")
    add("--batch", type=int, default=32, metavar="N", help="default: 32")
    add("--episodes", type=int, default=0, metavar="N", help="train on the first N demonstrations (default: all)")
    add("--seed", type=int, default=0, help="default: 0")
    train.set_defaults(run=_train)


def _list(arguments: argparse.Namespace) -> int:
    for kind in policy_kinds():
        print(_ABOUT.get(kind, kind))
    return 0


def _try(arguments: argparse.Namespace) -> int:
    from kinema4d_ros.kinematics import choose_kinematics
    from kinema4d_ros.lab import LabSimulation
    from kinema4d_ros.worlds import LabWorld

    if arguments.episodes < 1:
        raise PolicyError(f"{arguments.episodes} episodes", expected="1 or more", code=ErrorCode.ARGUMENT_INVALID)
    kinematics = choose_kinematics(Robot.load(arguments.robot))
    policy = make_policy(arguments.spec)
    done = 0
    try:
        for seed in range(arguments.seed, arguments.seed + arguments.episodes):
            world = LabWorld(LabSimulation(arguments.scenario, seed, kinematics.robot), kinematics)
            task = world.task(arguments.task)
            seen: list[Observation] = []
            run = world.run(policy, task, seed=seed, limit_s=arguments.limit, watch=seen.append)
            pictures = [*(one.image for one in seen), world.picture(run.states[-1]).rgb]
            done += bool(run.verdict.success)
            ended = f"{'' if run.verdict.success else 'not '}{task.goal.done}"
            start, end = (run.states[i].objects[task.target].position for i in (0, -1))
            print(
                f"{arguments.scenario} seed {seed}: {task.target} {ended}, "
                f"{1000 * (end - start)[2]:+.0f} mm up, {1000 * np.hypot(*(end - start)[:2]):.0f} mm along the table, "
                f"{run.commands.duration_s:.1f} s, {run.chunks} chunks",
                flush=True,
            )
    finally:
        policy.close()
    if arguments.episodes > 1:
        print(f"{policy.name}: {done} of {arguments.episodes} {task.goal.done}")
    if arguments.strip is not None:
        _write_strip(arguments.strip, np.array(pictures))
        print(arguments.strip)
    return 0


def _write_strip(path: Path, pictures: np.typing.NDArray[np.uint8]) -> None:
    chosen = pictures[np.linspace(0, len(pictures) - 1, min(8, len(pictures))).round().astype(int)]
    small = [cv2.resize(p, (240, round(240 * p.shape[0] / p.shape[1])), interpolation=cv2.INTER_AREA) for p in chosen]
    write_image(path, np.hstack(small))


def _serve(arguments: argparse.Namespace) -> int:
    from kinema4d_ros.policies.remote import TOKEN_VARIABLE
    from kinema4d_ros.policies.server import PolicyServer

    token = os.environ.get(TOKEN_VARIABLE, "")
    robot = Robot.load(arguments.robot)
    with PolicyServer(arguments.spec, robot, host=arguments.host, port=arguments.port, token=token) as server:
        print(f"remote:{arguments.host}:{server.port} serves {arguments.spec}; stop with Ctrl+C", flush=True)
        server.wait()
    return 0


def _demos(arguments: argparse.Namespace) -> int:
    from kinema4d_ros.policies.demos import DemoSettings, make_demos

    settings = DemoSettings(arguments.scenario, seed=arguments.seed)
    with tqdm(total=arguments.episodes, unit="episode") as bar:

        def progress(count: int, lifted: int) -> None:
            bar.update(count - bar.n)

        made, lifted = make_demos(
            arguments.out,
            arguments.episodes,
            settings,
            workers=arguments.workers,
            engine=arguments.engine,
            progress=progress,
        )
    print(f"{arguments.out}: {made} demonstrations, {lifted} lifted")
    return 0


def _train(arguments: argparse.Namespace) -> int:
    try:
        from kinema4d_model.policies.train import PolicyTraining, train_policy
    except ImportError as error:
        raise PolicyError(f"a package for training is not installed: {error}", expected="make setup",
                          code=ErrorCode.POLICY_UNAVAILABLE) from error  # fmt: skip
    training = PolicyTraining(
        steps=arguments.steps, batch=arguments.batch, seed=arguments.seed, episodes=arguments.episodes
    )
    with tqdm(total=arguments.steps, unit="step") as bar:

        def progress(step: int, loss: float) -> None:
            bar.update(step - bar.n)
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)

        train_policy(arguments.data, arguments.out, training, progress=progress)
    print(f"diffusion:{arguments.out}")
    return 0
