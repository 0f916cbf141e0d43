"""Disabled collision pairs of an SRDF, computed by sampling.

A pair of links needs no collision check when it is

- Adjacent: connected by a joint, directly or through links without shapes;
- Always: in collision in every sample, so the shapes overlap by design;
- Never: in collision in no sample, so the links cannot touch.

Samples are uniform within the joint limits and seeded; the first ones are the robot's named poses.
`python -m kinema4d_ros.robot.collisions yam` writes the pairs into `config/moveit/yam.srdf`,
between the two marker comments.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import coal
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.core.transforms import make
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.robot.model import Geometry, Robot

__all__ = ["DisabledPair", "colliding_pairs", "disabled_pairs", "srdf_with_pairs"]

SAMPLES = 10_000
SEED = 2026
UNBOUNDED_RANGE = np.pi
"""Sampling range of continuous joints: [-pi, pi]."""

BEGIN = "<!-- disabled collision pairs, written by `python -m kinema4d_ros.robot.collisions {name}`: begin -->"
END = "<!-- disabled collision pairs: end -->"


@dataclass(frozen=True, order=True)
class DisabledPair:
    """Two links, in the robot's order, and the reason why they need no collision check."""

    link1: str
    link2: str
    reason: str


@dataclass(frozen=True)
class _Body:
    """Collision shapes of one link with their bounding boxes (frame at the centre of the box)."""

    link: int
    shapes: tuple[Any, ...]
    link_T_shapes: NDArray[np.float64]
    link_T_boxes: NDArray[np.float64]
    halves: NDArray[np.float64]


def disabled_pairs(robot: Robot, samples: int = SAMPLES, seed: int = SEED) -> tuple[DisabledPair, ...]:
    """Return link pairs that need no collision check, in the robot's order."""
    bodies = _bodies(robot)
    adjacent = _adjacent(robot, {body.link for body in bodies})
    q = _configurations(robot, samples, seed)
    base_T_links = forward_all(robot, q)
    out = []
    for a, b in combinations(bodies, 2):
        reason = "Adjacent" if (a.link, b.link) in adjacent else _classify(a, b, base_T_links)
        if reason:
            out.append(DisabledPair(robot.links[a.link].name, robot.links[b.link].name, reason))
    return tuple(out)


def colliding_pairs(robot: Robot, q: NDArray[np.float64]) -> tuple[tuple[str, str], ...]:
    """Return non-adjacent link pairs whose collision shapes touch at one configuration (J,)."""
    bodies = _bodies(robot)
    adjacent = _adjacent(robot, {body.link for body in bodies})
    base_T_links = forward_all(robot, q[None])
    return tuple(
        (robot.links[a.link].name, robot.links[b.link].name)
        for a, b in combinations(bodies, 2)
        if (a.link, b.link) not in adjacent and _touch(a, b, base_T_links[0], _near(a, b, base_T_links)[0])
    )


def srdf_with_pairs(srdf: str, name: str, pairs: tuple[DisabledPair, ...]) -> str:
    """Return the SRDF text with the lines between the two markers replaced."""
    begin = BEGIN.format(name=name)
    if srdf.count(begin) != 1 or srdf.count(END) != 1 or srdf.index(begin) > srdf.index(END):
        raise FileFormatError(
            f"the SRDF of '{name}' lacks the markers for disabled collision pairs",
            expected=f"{begin} and, below it, {END}",
        )
    lines = [f'  <disable_collisions link1="{p.link1}" link2="{p.link2}" reason="{p.reason}"/>\n' for p in pairs]
    pattern = re.escape(begin) + r"\n.*?[ \t]*" + re.escape(END)
    return re.sub(pattern, lambda _: f"{begin}\n{''.join(lines)}  {END}", srdf, flags=re.DOTALL)


def _classify(a: _Body, b: _Body, base_T_links: NDArray[np.float64]) -> str:
    near = _near(a, b, base_T_links)
    candidates = np.flatnonzero(near.any(axis=(1, 2)))
    hit, free = False, len(candidates) < len(base_T_links)
    for t in candidates:
        if _touch(a, b, base_T_links[t], near[t]):
            hit = True
        else:
            free = True
        if hit and free:
            return ""
    return "Always" if hit else "Never"


def _near(a: _Body, b: _Body, base_T_links: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return (T, A, B) bool, True if two shapes may touch: each one's bounding sphere reaches the other's box."""
    base_T_a = base_T_links[:, a.link, None] @ a.link_T_boxes
    base_T_b = base_T_links[:, b.link, None] @ b.link_T_boxes
    offset = base_T_b[:, None, :, :3, 3] - base_T_a[:, :, None, :3, 3]
    in_a = np.einsum("taij,tabi->tabj", base_T_a[..., :3, :3], offset)
    in_b = np.einsum("tbij,tabi->tabj", base_T_b[..., :3, :3], -offset)
    gap_a = np.linalg.norm(np.maximum(np.abs(in_a) - a.halves[:, None], 0.0), axis=-1)
    gap_b = np.linalg.norm(np.maximum(np.abs(in_b) - b.halves, 0.0), axis=-1)
    radius_a, radius_b = np.linalg.norm(a.halves, axis=1), np.linalg.norm(b.halves, axis=1)
    near: NDArray[np.bool_] = (gap_a <= radius_b) & (gap_b <= radius_a[:, None])
    return near


def _touch(a: _Body, b: _Body, base_T_link: NDArray[np.float64], near: NDArray[np.bool_]) -> bool:
    request = coal.CollisionRequest()
    base_T_a = base_T_link[a.link] @ a.link_T_shapes
    base_T_b = base_T_link[b.link] @ b.link_T_shapes
    for i, j in np.argwhere(near):
        result = coal.CollisionResult()
        if coal.collide(a.shapes[i], _pose(base_T_a[i]), b.shapes[j], _pose(base_T_b[j]), request, result):
            return True
    return False


def _bodies(robot: Robot) -> list[_Body]:
    bodies = []
    for i, link in enumerate(robot.links):
        if not link.collisions:
            continue
        low = np.array([g.mesh.vertices.min(axis=0) for g in link.collisions])
        high = np.array([g.mesh.vertices.max(axis=0) for g in link.collisions])
        link_T_shapes = np.array([g.link_T_geometry for g in link.collisions])
        bodies.append(
            _Body(
                link=i,
                shapes=tuple(_shape(g) for g in link.collisions),
                link_T_shapes=link_T_shapes,
                link_T_boxes=link_T_shapes @ make(None, (low + high) / 2.0),
                halves=(high - low) / 2.0,
            )
        )
    return bodies


def _shape(geometry: Geometry) -> Any:
    if geometry.kind == "box":
        return coal.Box(*geometry.size)
    if geometry.kind == "cylinder":
        return coal.Cylinder(*geometry.size)
    if geometry.kind == "sphere":
        return coal.Sphere(*geometry.size)
    model = coal.BVHModelOBBRSS()
    model.beginModel(len(geometry.mesh.faces), len(geometry.mesh.vertices))
    model.addVertices(geometry.mesh.vertices)
    model.addTriangles(geometry.mesh.faces.astype(np.int64))
    model.endModel()
    return model


def _pose(T: NDArray[np.float64]) -> Any:
    return coal.Transform3s(np.ascontiguousarray(T[:3, :3]), np.ascontiguousarray(T[:3, 3]))


def _adjacent(robot: Robot, with_shapes: set[int]) -> set[tuple[int, int]]:
    """Return pairs of link indices, smaller first, of links connected directly or through links without shapes."""
    index = {link.name: i for i, link in enumerate(robot.links)}
    parent = {index[joint.child]: index[joint.parent] for joint in robot.joints}
    pairs = set()
    for child in with_shapes:
        above = parent.get(child)
        while above is not None and above not in with_shapes:
            above = parent.get(above)
        if above is not None:
            pairs.add((above, child))
    return pairs


def _configurations(robot: Robot, samples: int, seed: int) -> NDArray[np.float64]:
    """Return (N + samples, J): home and the named poses first, then uniform samples within the limits."""
    named = [robot.home_position()]
    for pose in robot.poses.values():
        named.append(robot.positions(list(pose), list(pose.values()))[0])
    lower = np.where(np.isfinite(robot.lower), robot.lower, -UNBOUNDED_RANGE)
    upper = np.where(np.isfinite(robot.upper), robot.upper, UNBOUNDED_RANGE)
    random = np.random.default_rng(seed).uniform(lower, upper, (samples, len(lower)))
    return np.concatenate([named, random])


def main(arguments: list[str] | None = None) -> int:
    """Rewrite the disabled pairs of `config/moveit/<robot>.srdf`."""
    parser = argparse.ArgumentParser(prog="python -m kinema4d_ros.robot.collisions", description=main.__doc__)
    parser.add_argument("robot", help="name of a robot, such as yam")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="random configurations (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the samples (default: %(default)s)")
    parser.add_argument("--srdf", type=Path, help="the file to rewrite (default: config/moveit/<robot>.srdf)")
    options = parser.parse_args(arguments)
    robot = Robot.load(options.robot)
    path = options.srdf or share_path(f"config/moveit/{robot.name}.srdf")
    if not path.is_file():
        raise FileFormatError(f"there is no {path}", expected="an SRDF with markers", code=ErrorCode.FILE_MISSING)
    pairs = disabled_pairs(robot, options.samples, options.seed)
    path.write_text(srdf_with_pairs(path.read_text(encoding="utf-8"), robot.name, pairs), encoding="utf-8")
    print(f"{path}: {len(pairs)} disabled pairs from {options.samples} samples")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
