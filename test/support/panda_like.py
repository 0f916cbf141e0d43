"""An arm with the Franka Panda's public kinematics, made of primitive shapes; its last link is visible."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kinema4d_ros.robot import Robot

DH = (
    (0.0, 0.333, 0.0, 2.8973), (0.0, 0.0, -90.0, 1.7628), (0.0, 0.316, 90.0, 2.8973), (0.0825, 0.0, 90.0, 3.0718),
    (-0.0825, 0.384, -90.0, 2.8973), (0.0, 0.0, 90.0, 3.7525), (0.088, 0.0, 90.0, 2.8973),
)  # fmt: skip
"""Of each joint: a and d in metres, alpha in degrees (Craig's convention), limit in radians."""

HOME = (0.0, -0.6, 0.0, -2.2, 0.0, 1.8, 0.8)

SHAPES = (
    ('<box size="0.20 0.18 0.14"/>', "-0.04 0 0.07", "0.9 0.9 0.9"),
    ('<cylinder radius="0.06" length="0.26"/>', "0 0 -0.12", "0.9 0.9 0.9"),
    ('<cylinder radius="0.058" length="0.20"/>', "0 -0.07 0", "0.9 0.9 0.9"),
    ('<cylinder radius="0.056" length="0.22"/>', "0 0 -0.10", "0.9 0.9 0.9"),
    ('<sphere radius="0.065"/>', "0 0 0", "0.8 0.8 0.8"),
    ('<cylinder radius="0.05" length="0.30"/>', "0 0 -0.16", "0.9 0.9 0.9"),
    ('<sphere radius="0.06"/>', "0 0 0", "0.9 0.9 0.9"),
    ('<cylinder radius="0.045" length="0.10"/>', "0 0 0.05", "0.8 0.8 0.8"),
    ('<box size="0.07 0.20 0.09"/>', "0 0 0.04", "0.05 0.05 0.05"),
)


def panda_like(folder: Path, *, tool: bool = False) -> Robot:
    """Write the URDF, with a black hand as its last link or, with `tool`, an empty link behind it, and load it."""
    links = [
        f'<link name="link{i}"><visual><origin xyz="{at}"/><geometry>{shape}</geometry>'
        f'<material name="m{i}"><color rgba="{colour} 1"/></material></visual></link>'
        for i, (shape, at, colour) in enumerate(SHAPES)
    ]
    joints = []
    for i, (a, d, alpha, limit) in enumerate(DH):
        # Craig: turn about x by alpha, then along z by d.
        turn = np.radians(alpha)
        xyz = f"{a} {-d * np.sin(turn):.9f} {d * np.cos(turn):.9f}"
        joints.append(
            f'<joint name="joint{i + 1}" type="revolute"><parent link="link{i}"/><child link="link{i + 1}"/>'
            f'<origin xyz="{xyz}" rpy="{turn:.9f} 0 0"/><axis xyz="0 0 1"/>'
            f'<limit lower="{-limit}" upper="{limit}" effort="80" velocity="2"/></joint>'
        )
    joints.append(
        '<joint name="hand_joint" type="fixed"><parent link="link7"/><child link="link8"/>'
        '<origin xyz="0 0 0.107" rpy="0 0 -0.785398"/></joint>'
    )
    if tool:
        links.append('<link name="tool"/>')
        joints.append('<joint name="tool_joint" type="fixed"><parent link="link8"/><child link="tool"/></joint>')
    path = folder / "panda_like.urdf"
    path.write_text(f'<robot name="panda_like">{"".join(links)}{"".join(joints)}</robot>')
    return Robot.load(path)
