"""Extrinsics from the hand-eye calibrations of easy_handeye2 (`~/.ros2/easy_handeye2/calibrations/*.calib`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d_ros.calibration._fields import Fields
from kinema4d_ros.calibration.extrinsics import Extrinsics, unit_quaternion
from kinema4d_ros.core.errors import CalibrationError, ErrorCode
from kinema4d_ros.core.transforms import make
from kinema4d_ros.io.files import read_yaml, reading

__all__ = ["from_easy_handeye_document", "read_easy_handeye"]


def read_easy_handeye(path: str | Path) -> Extrinsics:
    """The pose of a camera that stands still beside the robot (`eye_on_base`).

    `tracking_base_frame`, the frame the marker was seen in, must be the camera's optical frame.
    """
    with reading(path, "an easy_handeye2 calibration", error=CalibrationError):
        return from_easy_handeye_document(read_yaml(path), str(path))


def from_easy_handeye_document(document: Mapping[str, Any], source: str) -> Extrinsics:
    """Read the mapping of the file, in the current layout or in that of its first releases."""
    fields = Fields(document, source)
    parameters = fields.section("parameters")
    if "calibration_type" in parameters:
        kind = parameters.text("calibration_type")
    else:
        on_hand = document["parameters"].get("eye_on_hand")
        if not isinstance(on_hand, bool):
            raise parameters.refuse("calibration_type", "eye_on_base")
        kind = "eye_in_hand" if on_hand else "eye_on_base"
    if kind == "eye_in_hand":
        raise CalibrationError(
            f"{source} is an eye_in_hand calibration: its camera rides on "
            f"'{parameters.text('robot_effector_frame', 'the hand')}' and has no fixed pose in the base frame",
            expected="an eye_on_base calibration of a camera that stands still",
            hint="run easy_handeye2 with calibration_type:=eye_on_base",
            code=ErrorCode.CALIBRATION_FRAME_MISMATCH,
        )
    if kind != "eye_on_base":
        raise parameters.refuse("calibration_type", "eye_on_base")
    if "transform" in fields:
        translation = [fields.section("transform").section("translation").number(key) for key in "xyz"]
        rotation = [fields.section("transform").section("rotation").number(key) for key in "xyzw"]
    else:
        translation = [fields.section("transformation").number(key) for key in "xyz"]
        rotation = [fields.section("transformation").number(f"q{key}") for key in "xyzw"]
    name = parameters.text("name", "")
    return Extrinsics(
        parent_frame=parameters.text("robot_base_frame"),
        child_frame=parameters.text("tracking_base_frame"),
        parent_T_child=make(unit_quaternion(np.array(rotation), source), translation),
        method="easy_handeye2 eye_on_base",
        notes=f"read from calibration '{name}'" if name else "",
    )
