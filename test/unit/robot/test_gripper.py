from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinema4d_ros.core.errors import ErrorCode, RobotError
from kinema4d_ros.robot import Gripper, Robot, VendorJoint
from kinema4d_ros.robot.gripper import RANGE_TOLERANCE

UNIT = st.floats(0.0, 1.0)


@st.composite
def grippers(draw: st.DrawFn) -> Gripper:
    closed = draw(st.floats(-1.0, 1.0))
    stroke = draw(st.floats(0.01, 2.0)) * draw(st.sampled_from([-1.0, 1.0]))
    width = draw(st.floats(0.0, 0.1))
    vendor = tuple(
        VendorJoint(name, "f", draw(st.floats(0.1, 10.0)) * sign, draw(st.floats(-1.0, 1.0)))
        for name, sign in (("v1", -1.0), ("v2", 1.0))
    )
    return Gripper("f", closed, closed + stroke, width, width + draw(st.floats(0.001, 0.2)), vendor)


@given(grippers(), UNIT)
def test_conversions_round_trip(gripper: Gripper, s: float) -> None:
    position = gripper.position(s)
    width = gripper.width_m(s)
    assert gripper.normalised(position) == pytest.approx(s, abs=1e-9)
    assert gripper.normalised_from_width(width) == pytest.approx(s, abs=1e-9)
    assert gripper.position_from_width(width) == pytest.approx(float(position), abs=1e-9)
    assert gripper.width_from_position(position) == pytest.approx(float(width), abs=1e-9)
    vendor = gripper.to_vendor(position)
    for name, value in vendor.items():
        assert gripper.from_vendor([name], [[float(value)]])[0] == pytest.approx(float(position), abs=1e-9)
    both = gripper.from_vendor(list(vendor), np.array([list(vendor.values())]))
    assert both[0] == pytest.approx(float(position), abs=1e-9)


@given(grippers())
def test_ends(gripper: Gripper) -> None:
    assert gripper.position(0.0) == gripper.closed
    assert gripper.position(1.0) == pytest.approx(gripper.open)
    assert gripper.width_m([0.0, 1.0]).tolist() == pytest.approx([gripper.width_closed_m, gripper.width_open_m])


@given(grippers(), st.floats(0.0, 0.9))
def test_a_small_overshoot_is_clipped_and_a_larger_one_refused(gripper: Gripper, part: float) -> None:
    allowed = part * RANGE_TOLERANCE
    assert gripper.position(1.0 + allowed) == pytest.approx(gripper.open)
    assert gripper.position(-allowed) == gripper.closed
    stroke = gripper.open - gripper.closed
    for value in (gripper.open + 1.1 * RANGE_TOLERANCE * stroke, gripper.closed - 1.1 * RANGE_TOLERANCE * stroke):
        with pytest.raises(RobotError, match="tolerated") as caught:
            gripper.normalised(value)
        assert caught.value.code is ErrorCode.TRAJECTORY_OUT_OF_LIMITS


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.5, 1.5, [0.5, 2.0]])
def test_invalid_openings(yam: Robot, value: float) -> None:
    assert yam.gripper is not None
    with pytest.raises(RobotError, match="normalised opening"):
        yam.gripper.width_m(value)


def test_the_yam(yam: Robot) -> None:
    gripper = yam.gripper
    assert gripper is not None
    assert float(gripper.width_m(1.0)) == pytest.approx(0.0939)
    assert float(gripper.position(1.0)) == 0.04695
    assert {k: float(v) for k, v in gripper.to_vendor(0.04695).items()} == {"joint7": -0.04695, "joint8": -0.04695}
    np.testing.assert_allclose(gripper.from_vendor(["joint8", "joint7"], [[-0.01, -0.01], [0, 0]]), [0.01, 0.0])


def test_vendor_data_in_another_convention_is_refused(yam: Robot) -> None:
    assert yam.gripper is not None
    with pytest.raises(RobotError, match=r"vendor joint 'joint7', converted, is -0.03"):
        yam.gripper.from_vendor(["joint7"], [[0.03]])
    with pytest.raises(RobotError, match=r"differ by 0.02"):
        yam.gripper.from_vendor(["joint7", "joint8"], [[-0.01, -0.03]])
    with pytest.raises(RobotError, match="joint9") as caught:
        yam.gripper.from_vendor(["joint9"], [[-0.01]])
    assert caught.value.code is ErrorCode.UNKNOWN_JOINT
    with pytest.raises(RobotError, match=r"shape \(1, 1\) for 2 names"):
        yam.gripper.from_vendor(["joint7", "joint8"], [[-0.01]])


def test_a_gripper_without_a_vendor(primitive_arm: Robot) -> None:
    assert primitive_arm.gripper is not None
    for call in (lambda g: g.to_vendor(0.0), lambda g: g.from_vendor(["x"], [[0.0]])):
        with pytest.raises(RobotError, match="no vendor convention") as caught:
            call(primitive_arm.gripper)
        assert caught.value.code is ErrorCode.NO_GRIPPER


@pytest.mark.parametrize(
    "numbers",
    [(0.0, 0.0, 0.0, 0.1), (0.0, 1.0, 0.1, 0.1), (0.0, 1.0, -0.1, 0.1), (0.0, float("nan"), 0.0, 0.1)],
)
def test_invalid_grippers(numbers: tuple[float, float, float, float]) -> None:
    with pytest.raises(RobotError, match="gripper 'f'"):
        Gripper("f", *numbers)
