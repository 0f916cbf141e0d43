"""Choice of the back-end, and the error if the selected one is missing."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from kinema4d_ros.core.errors import ErrorCode, KinematicsError
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.kinematics.pinocchio_backend import PinocchioKinematics
from kinema4d_ros.robot import Robot

HAS_MOVEIT = find_spec("moveit") is not None


def test_pinocchio_by_name(yam: Robot) -> None:
    kinematics = choose_kinematics(yam, "pinocchio")
    assert isinstance(kinematics, PinocchioKinematics)
    assert kinematics.robot is yam


def test_auto_is_pinocchio(yam: Robot) -> None:
    assert isinstance(choose_kinematics(yam), PinocchioKinematics)


@pytest.mark.skipif(HAS_MOVEIT, reason="MoveIt is installed")
def test_a_missing_back_end_is_not_replaced(yam: Robot) -> None:
    with pytest.raises(KinematicsError, match="ros-jazzy-moveit-py") as caught:
        choose_kinematics(yam, "moveit")
    assert caught.value.code == ErrorCode.BACKEND_MISSING


@pytest.mark.skipif(HAS_MOVEIT, reason="MoveIt is installed")
def test_the_moveit_back_end_reports_a_missing_module(yam: Robot) -> None:
    from kinema4d_ros.kinematics.moveit_backend import MoveItKinematics

    with pytest.raises(KinematicsError, match="ros-jazzy-moveit-py") as caught:
        MoveItKinematics(yam)
    assert caught.value.code == ErrorCode.BACKEND_MISSING


def test_unknown_names_are_refused(yam: Robot) -> None:
    with pytest.raises(KinematicsError, match="auto, pinocchio, moveit"):
        choose_kinematics(yam, "kdl")
