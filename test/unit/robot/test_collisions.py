from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from kinema4d_ros.core.errors import FileFormatError
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.robot import Robot
from kinema4d_ros.robot.collisions import (
    BEGIN,
    END,
    DisabledPair,
    colliding_pairs,
    disabled_pairs,
    main,
    srdf_with_pairs,
)

TEST_SAMPLES = 2000


def arm(shape: str) -> str:
    """Build links a - (fixed) - gap - (revolute) - b, and c beside a: b sweeps over c once per turn."""
    body = f"<collision><geometry>{shape}</geometry></collision>"
    return f"""<robot name="r"><link name="a">{body}</link><link name="gap"/>
    <link name="b"><collision><origin xyz="1 0 0"/><geometry>{shape}</geometry></collision></link>
    <link name="c">{body}</link><link name="d">{body}</link><link name="e">{body}</link>
    <joint name="f" type="fixed"><parent link="a"/><child link="gap"/></joint>
    <joint name="j" type="continuous"><parent link="gap"/><child link="b"/><axis xyz="0 0 1"/></joint>
    <joint name="g" type="fixed"><parent link="a"/><child link="c"/><origin xyz="0 1 0"/></joint>
    <joint name="h" type="fixed"><parent link="a"/><child link="d"/><origin xyz="0 5 0"/></joint>
    <joint name="i" type="fixed"><parent link="d"/><child link="e"/><origin xyz="0 -4 0"/></joint></robot>"""


@pytest.mark.parametrize(
    "shape",
    [
        '<box size="0.2 0.2 0.2"/>',
        '<sphere radius="0.1"/>',
        '<cylinder radius="0.1" length="0.1"/>',
        '<mesh filename="cube.stl" scale="0.2 0.2 0.2"/>',
    ],
)
def test_reasons(write_urdf: Callable[[str], Path], tmp_path: Path, cube_stl: bytes, shape: str) -> None:
    (tmp_path / "cube.stl").write_bytes(cube_stl)
    robot = Robot.load(write_urdf(arm(shape)))
    pairs = disabled_pairs(robot, samples=200)
    assert set(pairs) == {
        DisabledPair("a", "b", "Adjacent"),
        DisabledPair("a", "c", "Adjacent"),
        DisabledPair("a", "d", "Adjacent"),
        DisabledPair("d", "e", "Adjacent"),
        DisabledPair("a", "e", "Never"),
        DisabledPair("b", "d", "Never"),
        DisabledPair("c", "d", "Never"),
        DisabledPair("c", "e", "Always"),
    }
    assert colliding_pairs(robot, np.array([np.pi / 2])) == (("b", "c"), ("b", "e"), ("c", "e"))
    assert colliding_pairs(robot, np.array([0.0])) == (("c", "e"),)


def test_the_committed_pairs_are_the_computed_ones(yam: Robot) -> None:
    srdf = share_path("config/moveit/yam.srdf").read_text(encoding="utf-8")
    assert srdf_with_pairs(srdf, "yam", disabled_pairs(yam, samples=TEST_SAMPLES)) == srdf


def hulls_touch(p_first: NDArray[np.float64], p_second: NDArray[np.float64]) -> bool:
    """Return True if two convex hulls share a point, by linear programming, without a collision library."""
    n, m = len(p_first), len(p_second)
    equal = np.block(
        [[p_first.T, -p_second.T], [np.ones((1, n)), np.zeros((1, m))], [np.zeros((1, n)), np.ones((1, m))]]
    )
    return bool(linprog(np.zeros(n + m), A_eq=equal, b_eq=[0, 0, 0, 1, 1], method="highs").status == 0)


def separated(p_first: NDArray[np.float64], p_second: NDArray[np.float64], axes: NDArray[np.float64]) -> bool:
    """Return True if one of the directions (3, D) separates two hulls."""
    first, second = p_first @ axes, p_second @ axes
    return bool(np.any((first.max(axis=0) < second.min(axis=0)) | (second.max(axis=0) < first.min(axis=0))))


def links_touch(robot: Robot, pair: tuple[int, int], base_T_link: NDArray[np.float64], scale: float) -> bool:
    """Return True if the triangle hulls of two links touch, each shape scaled about its centre."""
    for g, h in product(*(robot.links[i].collisions for i in pair)):
        base_T_g, base_T_h = base_T_link[pair[0]] @ g.link_T_geometry, base_T_link[pair[1]] @ h.link_T_geometry
        p, q = apply(base_T_g, scale * g.mesh.vertices), apply(base_T_h, scale * h.mesh.vertices)
        axes = np.column_stack([base_T_g[:3, :3], base_T_h[:3, :3], base_T_h[:3, 3] - base_T_g[:3, 3]])
        if not separated(p, q, axes) and hulls_touch(p, q):
            return True
    return False


@pytest.mark.parametrize("name", ["yam", "primitive_arm"])
def test_contacts_are_those_of_the_convex_hulls(name: str) -> None:
    robot = Robot.load(name)
    neighbours = {(joint.parent, joint.child) for joint in robot.joints}
    shaped = [i for i, link in enumerate(robot.links) if link.collisions]
    rng = np.random.default_rng(3)
    contacts = 0
    for q in rng.uniform(np.maximum(robot.lower, -3), np.minimum(robot.upper, 3), (20, len(robot.actuated))):
        base_T_link = forward_all(robot, q[None])[0]
        found = set(colliding_pairs(robot, q))
        for pair in combinations(shaped, 2):
            names = (robot.links[pair[0]].name, robot.links[pair[1]].name)
            if names in neighbours:
                continue
            # Round shapes have inscribed triangles, so the true result is between two scales.
            if names in found:
                contacts += 1
                assert links_touch(robot, pair, base_T_link, 1.01), names
            else:
                assert not links_touch(robot, pair, base_T_link, 1.0), names
    assert contacts >= 2, "the samples hold contacts to compare"


def test_no_named_pose_is_in_collision(yam: Robot, primitive_arm: Robot) -> None:
    for robot in (yam, primitive_arm):
        for name in robot.poses:
            assert colliding_pairs(robot, robot.pose(name)) == (), (robot.name, name)


def test_the_yam_can_collide_with_itself(yam: Robot) -> None:
    # Elbow folded and the wrist bent towards the upper arm.
    q = yam.positions(["joint2", "joint3", "joint4"], [2.0, 0.0, -1.5])[0]
    assert {("link2", "link4"), ("link2", "link5")} <= set(colliding_pairs(yam, q))


def test_the_command_rewrites_the_lines_between_the_markers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.srdf"
    begin = BEGIN.format(name="primitive_arm")
    path.write_text(f"<robot>\n  <before/>\n  {begin}\n  <old/>\n  {END}\n  <after/>\n</robot>\n")
    assert main(["primitive_arm", "--samples", "50", "--srdf", str(path)]) == 0
    text = path.read_text()
    assert "<old/>" not in text
    assert '<disable_collisions link1="pedestal" link2="shoulder" reason="Adjacent"/>' in text
    assert text.startswith(f"<robot>\n  <before/>\n  {begin}\n  <disable")
    assert text.endswith(f'"/>\n  {END}\n  <after/>\n</robot>\n')
    assert "disabled pairs from 50 samples" in capsys.readouterr().out
    main(["primitive_arm", "--samples", "50", "--srdf", str(path)])
    assert path.read_text() == text


def test_an_srdf_without_markers_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="lacks the markers"):
        srdf_with_pairs("<robot/>", "yam", ())
    with pytest.raises(FileFormatError, match="there is no"):
        main(["primitive_arm", "--samples", "1", "--srdf", str(tmp_path / "none.srdf")])
