"""Conversion of plan reports to kinema4d_msgs/PlanReport and to RViz markers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from builtin_interfaces.msg import Duration
from geometry_msgs.msg import Point
from numpy.typing import NDArray
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker, MarkerArray

from kinema4d_msgs.msg import MovedRegion as MovedRegionMsg
from kinema4d_msgs.msg import PlanReport as PlanReportMsg
from kinema4d_ros.previews.report import PlanReport
from kinema4d_ros.previews.report.plan_report import BASIS_TEXT
from kinema4d_ros.ros.messages.errors import error_to_msg
from kinema4d_ros.ros.messages.outcomes import outcomes_to_msg
from kinema4d_ros.ros.messages.stamps import header

__all__ = ["report_to_markers", "report_to_msg"]

GREEN = ColorRGBA(r=0.13, g=0.69, b=0.30, a=0.95)
AMBER = ColorRGBA(r=1.00, g=0.70, b=0.10, a=0.95)
RED = ColorRGBA(r=0.90, g=0.15, b=0.15, a=0.95)
BLUE = ColorRGBA(r=0.20, g=0.45, b=0.95, a=0.95)
LABEL_M, ABOVE_M = 0.03, 0.05
"""Height of the letters of a label, and of the label above what it is about."""

NEAR_M = 0.03
"""Clearance below this, or not based on measured depth, is drawn in amber."""


def report_to_msg(report: PlanReport, stamp: Any) -> Any:
    """Convert a report to a kinema4d_msgs/PlanReport."""
    message = PlanReportMsg(
        header=header(stamp, report.frame_id),
        plan_hash=report.plan_hash,
        rollout_id=report.rollout_id,
        error=error_to_msg(),
        times=report.times.tolist(),
        clearance_m=report.clearance_m.tolist(),
        min_clearance_link=report.min_clearance_link,
        clearance_basis=report.clearance_basis,
        contact=report.contact,
        first_contact_link=report.first_contact_link,
        joint_names=list(report.joint_names),
        position_margin=report.position_margin.tolist(),
        velocity_ratio=report.velocity_ratio.tolist(),
        outcomes=outcomes_to_msg(report.outcomes),
        unknowns=list(report.unknowns),
        warnings=list(report.warnings),
    )
    for name in (
        "min_clearance_m",
        "min_clearance_s",
        "contact_threshold_m",
        "first_contact_s",
        "max_penetration_m",
        "grasp_s",
        "release_s",
    ):
        setattr(message, name, float(getattr(report, name)))
    for name in ("min_clearance_robot_point", "min_clearance_world_point", "first_contact_point"):
        setattr(message, name, _point(getattr(report, name)))
    message.moved = [
        MovedRegionMsg(
            start=_point(region.start),
            end=_point(region.end),
            displacement_m=float(region.displacement_m),
            points=int(region.points),
            first_motion_s=float(region.first_motion_s),
        )
        for region in report.moved
    ]
    return message


def report_to_markers(report: PlanReport, stamp: Any) -> Any:
    """Convert a report to markers: closest approach, first contact, moved objects; earlier markers are deleted.

    Warnings with a position are written there: where the first contact is, and where an object moves to.
    """
    wipe = Marker(header=header(stamp, report.frame_id), action=Marker.DELETEALL)
    markers = [wipe]

    def add(kind: int, colour: Any, scale: tuple[float, float, float], space: str) -> Any:
        marker = Marker(header=header(stamp, report.frame_id), ns=space, id=len(markers), type=kind, color=colour)
        marker.action = Marker.ADD
        marker.lifetime = Duration()
        marker.scale.x, marker.scale.y, marker.scale.z = scale
        marker.pose.orientation.w = 1.0
        markers.append(marker)
        return marker

    def write(text: str, colour: Any, point: NDArray[np.float64], space: str) -> None:
        label = add(Marker.TEXT_VIEW_FACING, colour, (0.0, 0.0, LABEL_M), space)
        label.text, label.pose.position = text, _point(np.add(point, (0.0, 0.0, ABOVE_M)))

    if math.isfinite(report.min_clearance_m):
        # Green means safe, so it requires measured depth.
        safe = report.clearance_basis == "measured" and report.min_clearance_m >= NEAR_M
        colour = RED if report.contact else GREEN if safe else AMBER
        line = add(Marker.LINE_LIST, colour, (0.004, 0.0, 0.0), "clearance")
        line.points = [_point(report.min_clearance_robot_point), _point(report.min_clearance_world_point)]
        text = f"{report.min_clearance_link}: {1000 * report.min_clearance_m:.0f} mm"
        if report.clearance_basis != "measured":
            text += f"\n{BASIS_TEXT[report.clearance_basis]}"
        write(text, colour, report.min_clearance_robot_point, "clearance")
    if report.contact:
        ball = add(Marker.SPHERE, RED, (0.02, 0.02, 0.02), "contact")
        ball.pose.position = _point(report.first_contact_point)
        text = f"{report.first_contact_link} touches at {report.first_contact_s:.1f} s"
        if report.max_penetration_m > 0:
            text += f", up to {1000 * report.max_penetration_m:.0f} mm deep"
        # Below the ball: the closest approach is often the same place.
        write(text, RED, np.subtract(report.first_contact_point, (0.0, 0.0, 2 * ABOVE_M)), "contact")
    for region in report.moved:
        arrow = add(Marker.ARROW, BLUE, (0.006, 0.014, 0.02), "moved")
        arrow.points = [_point(region.start), _point(region.end)]
        write(f"moved {100 * region.displacement_m:.0f} cm", BLUE, region.end, "moved")
    return MarkerArray(markers=markers)


def _point(p: NDArray[np.float64]) -> Any:
    x, y, z = (float(value) for value in p)
    return Point(x=x, y=y, z=z)
