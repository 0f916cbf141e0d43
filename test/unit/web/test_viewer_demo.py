"""Plans of the page's buttons."""

from __future__ import annotations

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.kinematics.protocol import choose_kinematics
from kinema4d_ros.lab import LabSimulation
from kinema4d_ros.robot import Robot
from kinema4d_ros.web.demo import free_spots, plan_home, plan_pick_and_place


@pytest.fixture(scope="module")
def lab(yam: Robot) -> LabSimulation:
    return LabSimulation("cluttered", seed=1, robot=yam)


def test_pick_and_place_starts_at_the_arm_and_respects_its_limits(lab: LabSimulation, yam: Robot) -> None:
    state = lab.state()
    plan = plan_pick_and_place(choose_kinematics(yam), state.positions, state.objects, state.target)
    assert np.allclose(plan.for_robot(yam)[0], state.positions)
    plan.validate(yam, check_velocity=True)


def test_the_object_arrives_on_a_free_spot(yam: Robot) -> None:
    lab = LabSimulation("canonical", seed=0, robot=yam)
    state = lab.state()
    plan = plan_pick_and_place(choose_kinematics(yam), state.positions, state.objects, state.target)
    end = lab.run(plan).objects[state.target].position[:2]
    spots = free_spots(state.objects, state.target)[:6]
    assert min(np.linalg.norm(spot - end) for spot in spots) < 0.02
    assert np.linalg.norm(end - state.objects[state.target].position[:2]) > 0.05


def test_the_best_spot_is_clear_of_all_objects(lab: LabSimulation) -> None:
    state = lab.state()
    best = free_spots(state.objects, state.target)[0]
    held = state.objects[state.target]
    for name, other in state.objects.items():
        gap = np.linalg.norm(best - other.position[:2]) - held.object.radius - other.object.radius
        assert gap > 0.02 or name == state.target


def test_an_unknown_object_cannot_be_picked(lab: LabSimulation, yam: Robot) -> None:
    state = lab.state()
    with pytest.raises(KinemaError, match="'teapot' is not on the table") as caught:
        plan_pick_and_place(choose_kinematics(yam), state.positions, state.objects, "teapot")
    assert caught.value.code == ErrorCode.SCENARIO_UNKNOWN


def test_the_motion_home_ends_at_home_without_moving_the_gripper(yam: Robot) -> None:
    q = yam.home_position() + 0.1
    q = np.clip(q, yam.lower, yam.upper)
    end = plan_home(choose_kinematics(yam), q).for_robot(yam)[-1]
    fingers = yam.joint_names.index("left_finger_joint")
    assert end[fingers] == pytest.approx(q[fingers])
    assert np.allclose(np.delete(end, fingers), np.delete(yam.home_position(), fingers))
