"""Forward and inverse kinematics of the YAM against pinocchio, MuJoCo and mink, in one run.

    python bench/kinematics.py [--quick]

CPU seconds (user + system), best of interleaved rounds. The last line is JSON with the ratios.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import i2rt
import ik_suite
import mujoco
import numpy as np
import pinocchio as pin
from numpy.typing import NDArray

from kinema4d_ros.core.transforms import rotation_angle
from kinema4d_ros.kinematics import forward_all
from kinema4d_ros.kinematics.path import count_flips
from kinema4d_ros.kinematics.pinocchio_backend import ArmModel, PinocchioKinematics
from kinema4d_ros.kinematics.protocol import POSITION_TOLERANCE_M, ROTATION_TOLERANCE_RAD
from kinema4d_ros.robot import Robot

Array = NDArray[np.float64]
VENDOR_MJCF = Path(i2rt.__file__).parent / "robot_models" / "arm" / "yam" / "v1" / "yam.xml"
BODIES = ["link1", "link2", "link3", "link4", "link5", "gripper"]


def best_cpu_s(candidates: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Measure the best CPU time of each; they alternate in every round, so that the machine's load affects all."""
    best = dict.fromkeys(candidates, np.inf)
    for _ in range(rounds):
        for name, run in candidates.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
    return best


class PinocchioLoop:
    """Compute all link poses with pinocchio's own parser, one configuration at a time."""

    def __init__(self, robot: Robot) -> None:
        self.model = pin.buildModelFromXML(robot.urdf)
        self.data = self.model.createData()
        self.columns = [
            robot.joint_names.index(j.mimic.joint if j.mimic else j.name)
            for j in (robot.joint(name) for name in self.model.names[1:])
        ]
        self.frames = [self.model.getFrameId(link.name, pin.FrameType.BODY) for link in robot.links]

    def __call__(self, q: Array) -> Array:
        out = np.empty((len(q), len(self.frames), 4, 4))
        for i, row in enumerate(q[:, self.columns]):
            pin.framesForwardKinematics(self.model, self.data, row)
            for k, frame in enumerate(self.frames):
                out[i, k] = self.data.oMf[frame].homogeneous
        return out


class MujocoLoop:
    """Compute body poses of the vendor's MJCF (without fingers) with mj_kinematics."""

    def __init__(self) -> None:
        self.model = mujoco.MjModel.from_xml_path(str(VENDOR_MJCF))
        self.data = mujoco.MjData(self.model)
        self.ids = [self.model.body(name).id for name in BODIES]

    def __call__(self, q: Array) -> tuple[Array, Array]:
        positions, rotations = np.empty((len(q), len(self.ids), 3)), np.empty((len(q), len(self.ids), 9))
        for i, row in enumerate(q):
            self.data.qpos[:] = row[:6]
            mujoco.mj_kinematics(self.model, self.data)
            positions[i], rotations[i] = self.data.xpos[self.ids], self.data.xmat[self.ids]
        return positions, rotations


def bench_forward(robot: Robot, quick: bool) -> dict[str, Any]:
    pinocchio, simulator = PinocchioLoop(robot), MujocoLoop()
    out: dict[str, Any] = {}
    print(f"forward kinematics, {len(robot.links)} links (MuJoCo: {len(BODIES)} bodies)")
    for count, rounds in ((49, 50), (2_000 if quick else 100_000, 3)):
        q = np.random.default_rng(0).uniform(robot.lower, robot.upper, (count, len(robot.joint_names)))
        ours = forward_all(robot, q)
        runs = {
            "kinema4d": lambda q=q: forward_all(robot, q),
            "pinocchio loop": lambda q=q: pinocchio(q),
            "MuJoCo loop": lambda q=q: simulator(q),
        }
        seconds = best_cpu_s(runs, rounds)
        for name, value in seconds.items():
            print(f"  {count:>7} x {name:<15} {1e3 * value:10.3f} ms   {value / seconds['kinema4d']:7.1f}")
        sample = q[:500]
        exact = float(np.max(np.abs(pinocchio(sample) - ours[:500])))
        links = [[link.name for link in robot.links].index(name) for name in BODIES]
        apart = np.linalg.norm(simulator(sample)[0] - ours[:500, links][..., :3, 3], axis=-1)
        out[f"fk_{count}"] = {
            "seconds": seconds["kinema4d"],
            "times_faster_than_pinocchio": seconds["pinocchio loop"] / seconds["kinema4d"],
            "times_faster_than_mujoco": seconds["MuJoCo loop"] / seconds["kinema4d"],
            "max_difference_to_pinocchio": exact,
            "max_distance_to_mujoco_m": float(apart.max()),
        }
    print(f"  agrees with pinocchio to {exact:.1e}, with the vendor's MJCF to {1e6 * apart.max():.1f} um\n")
    return out


class PlainClik:
    """Solve with pinocchio's textbook CLIK: fixed small damping, joints clipped to their limits after each step."""

    def __init__(self, robot: Robot) -> None:
        self.arm = ArmModel(robot)

    def solve_path(self, poses: Array, q: Array) -> Array:
        arm, model, data, tool = self.arm, self.arm._model, self.arm._data, self.arm._tool
        out = []
        for pose in poses:
            target = pin.SE3(pose)
            for _ in range(100):
                pin.computeJointJacobians(model, data, q)
                error = pin.log6(pin.updateFramePlacement(model, data, tool).actInv(target)).vector
                if np.linalg.norm(error) < 1e-4:
                    break
                J = pin.getFrameJacobian(model, data, tool, pin.LOCAL)
                q = np.clip(q + J.T @ np.linalg.solve(J @ J.T + 1e-6 * np.eye(6), error), arm.lower, arm.upper)
            out.append(q)
        return np.array(out)


class Mink:
    """Solve with mink's differential IK and its configuration limit, iterated to convergence at each pose."""

    def __init__(self, robot: Robot) -> None:
        import mink

        self.mink, self.model = mink, mujoco.MjModel.from_xml_path(str(VENDOR_MJCF))
        self.limits = [mink.ConfigurationLimit(self.model)]
        arm = ArmModel(robot)
        self.configuration = mink.Configuration(self.model)
        self.configuration.update(np.zeros(6))
        here = self.configuration.get_transform_frame_to_world("gripper", "body").as_matrix()
        self.gripper_T_tool = np.linalg.inv(here) @ arm.tool_pose(np.zeros(6))

    def solve_path(self, poses: Array, q: Array) -> Array:
        task = self.mink.FrameTask("gripper", "body", position_cost=1.0, orientation_cost=0.2)
        self.configuration.update(q)
        out = []
        for pose in poses @ np.linalg.inv(self.gripper_T_tool):
            task.set_target(self.mink.SE3.from_matrix(pose))
            for _ in range(50):
                velocity = self.mink.solve_ik(self.configuration, [task], 0.1, "daqp", limits=self.limits)
                self.configuration.integrate_inplace(velocity, 0.1)
                error = task.compute_error(self.configuration)
                if np.linalg.norm(error[:3]) < 1e-5 and np.linalg.norm(error[3:]) < 1e-4:
                    break
            out.append(self.configuration.q.copy())
        return np.array(out)


def bench_paths(robot: Robot, quick: bool) -> dict[str, Any]:
    paths, exits = (12, 6) if quick else (180, 120)
    kinematics, arm = PinocchioKinematics(robot), ArmModel(robot)
    peers: dict[str, Any] = {"plain CLIK": PlainClik(robot)}
    if find_spec("mink") is not None:
        peers["mink"] = Mink(robot)
    else:
        print("mink is not installed: pip install mink daqp")
    out: dict[str, Any] = {}
    suites = {
        "followable": list(ik_suite.cases(robot, paths)),
        "leaves and comes back": list(ik_suite.leaving(robot, exits)),
    }
    for suite, cases in suites.items():
        reachable = "all poses" if suite == "followable" else "poses that some branch reaches"
        print(f"inverse kinematics, {len(cases)} paths: {suite}; reached: of {reachable}")
        solved = {"kinema4d": lambda case: kinematics.solve_path(case.base_T_tool).q[:, :6]}
        starts = {id(case): kinematics.solve_path(case.base_T_tool).q[0, :6] for case in cases}
        for name, peer in peers.items():
            # Peers cannot choose a start configuration: they get ours.
            solved[name] = lambda case, peer=peer, starts=starts: peer.solve_path(case.base_T_tool, starts[id(case)])
        for name, solve in solved.items():
            row = measure(robot, arm, cases, solve, suite)
            out[f"{suite}: {name}"] = row
            print(
                f"  {name:<11} {row['us_per_pose']:8.0f} us/pose   reached {row['reached']:.4%}"
                f"   flips {row['flips']:>4}"
                f"   limits passed {row['violations']}   lost on the way back {row['lost']}"
                f"   largest joint step {row['largest_step_rad']:.2f} rad"
            )
        print()
    return out


def measure(robot: Robot, arm: ArmModel, cases: list[Any], solve: Callable[[Any], Array], suite: str) -> dict[str, Any]:
    seconds, poses, reached_count, flips, violations, lost, step = 0.0, 0, 0, 0, 0, 0, 0.0
    oracle = ik_suite.Oracle(robot)
    for case in cases:
        start = time.process_time()
        q = solve(case)
        seconds += time.process_time() - start
        there = np.array([arm.tool_pose(row) for row in q])
        close = np.linalg.norm(there[:, :3, 3] - case.base_T_tool[:, :3, 3], axis=1) <= POSITION_TOLERANCE_M
        close &= rotation_angle(there, case.base_T_tool) <= ROTATION_TOLERANCE_RAD
        within = np.ones(len(q), dtype=bool) if suite == "followable" else oracle.reachable(case.base_T_tool)
        poses += int(within.sum())
        reached_count += int((close & within).sum())
        flips += count_flips(arm, case.base_T_tool, q)
        violations += int(np.sum((q < arm.lower - 1e-9) | (q > arm.upper + 1e-9)))
        lost += 0 if suite == "followable" else ik_suite.lost_on_the_way_back(robot, case, close)
        step = max(step, float(np.max(np.abs(np.diff(q, axis=0)))))
    return {
        "us_per_pose": 1e6 * seconds / sum(len(case.base_T_tool) for case in cases),
        "reached": reached_count / poses,
        "flips": flips,
        "violations": violations,
        "lost": lost,
        "largest_step_rad": step,
    }


def bench_cold(robot: Robot, quick: bool) -> dict[str, Any]:
    count = 100 if quick else 2000
    kinematics, arm, plain = PinocchioKinematics(robot), ArmModel(robot), PlainClik(robot)
    rng = np.random.default_rng(42)
    poses = np.array([arm.tool_pose(rng.uniform(arm.lower, arm.upper)) for _ in range(count)])
    home = robot.home_position()
    kinematics.solve_path(poses[:1])
    out = {}
    print(f"cold start, {count} random reachable poses")
    solvers: dict[str, Callable[[Array], Array]] = {
        "kinema4d": lambda pose: kinematics.solve_path(pose[None]).q[0, :6],
        "plain CLIK": lambda pose: plain.solve_path(pose[None], home[:6])[0],
    }
    for name, solve in solvers.items():
        start = time.process_time()
        q = [solve(pose) for pose in poses]
        seconds = time.process_time() - start
        there = np.array([arm.tool_pose(row) for row in q])
        good = np.linalg.norm(there[:, :3, 3] - poses[:, :3, 3], axis=1) <= POSITION_TOLERANCE_M
        good &= rotation_angle(there, poses) <= ROTATION_TOLERANCE_RAD
        out[f"cold: {name}"] = {"success": float(good.mean()), "us_per_pose": 1e6 * seconds / count}
        print(f"  {name:<11} {1e6 * seconds / count:8.0f} us/pose   success {good.mean():.2%}")
    print()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small counts: a smoke test")
    quick = parser.parse_args().quick
    robot = Robot.load("yam")
    results = {**bench_forward(robot, quick), **bench_paths(robot, quick), **bench_cold(robot, quick)}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
