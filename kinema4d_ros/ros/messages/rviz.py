"""Markers for RViz: the menu beside the arm, the text above it, and the robot of the plan that is played."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import InteractiveMarker, InteractiveMarkerControl, Marker, MarkerArray, MenuEntry

from kinema4d_ros.robot import Robot
from kinema4d_ros.robot.model import Geometry
from kinema4d_ros.ros.messages.outcomes import TEXT_M, TOP_M
from kinema4d_ros.ros.messages.poses import matrix_to_pose
from kinema4d_ros.ros.messages.report import AMBER, BLUE, GREEN, RED
from kinema4d_ros.ros.messages.stamps import header

__all__ = ["Tone", "lines_to_markers", "menu_to_marker", "robot_to_markers", "wipe"]

Tone = Literal["good", "busy", "bad", "doubtful", "quiet"]

GREY = ColorRGBA(r=0.45, g=0.45, b=0.50, a=0.95)
_COLOURS: dict[Tone, Any] = {"good": GREEN, "busy": BLUE, "bad": RED, "doubtful": AMBER, "quiet": GREY}
_GHOST_ALPHA = 0.35

LETTERS, LINES = 72, 12
"""Letters of a line, and most lines, of the text above the arm."""

_SPACING = 1.4
_BALL_M = 0.06


def menu_to_marker(
    entries: Sequence[tuple[int, int, str]],
    frame_id: str,
    name: str,
    control: str,
    tone: Tone,
    position: tuple[float, float, float],
) -> Any:
    """Make the interactive marker of a menu.

    Args:
        entries: (id, id of the entry above or 0, text).
        frame_id: the robot's base frame.
        name, control: names of the marker and of its control, which RViz returns with every choice.
        tone: colour of the ball that opens the menu.
        position: of the ball in the base frame, metres.
    """
    marker = InteractiveMarker(header=header(0, frame_id), name=name, description="kinema4d: click for the menu")
    marker.scale = 2 * _BALL_M
    marker.pose.position.x, marker.pose.position.y, marker.pose.position.z = position
    marker.pose.orientation.w = 1.0
    marker.menu_entries = [
        MenuEntry(id=number, parent_id=above, title=text, command_type=MenuEntry.FEEDBACK)
        for number, above, text in entries
    ]
    ball = Marker(type=Marker.SPHERE, color=_COLOURS[tone])
    ball.scale.x = ball.scale.y = ball.scale.z = _BALL_M
    ball.pose.orientation.w = 1.0
    handle = InteractiveMarkerControl(
        name=control, interaction_mode=InteractiveMarkerControl.MENU, always_visible=True, markers=[ball]
    )
    handle.orientation.w = 1.0
    marker.controls = [handle]
    return marker


def lines_to_markers(lines: Sequence[tuple[str, Tone]], frame_id: str) -> Any:
    """Convert coloured lines to text markers above the outcomes' text; long lines are wrapped, earlier ones deleted.

    RViz centres a text of several lines at its position, so every line is a marker of its own.
    """
    wrapped = [(part, tone) for text, tone in lines for part in textwrap.wrap(_printable(text), LETTERS)][:LINES]
    message = wipe(frame_id)
    for number, (text, tone) in enumerate(wrapped):
        marker = Marker(header=header(0, frame_id), ns="status", id=number, type=Marker.TEXT_VIEW_FACING)
        marker.action, marker.text, marker.color, marker.scale.z = Marker.ADD, text, _COLOURS[tone], TEXT_M
        marker.pose.position.z = TOP_M + _SPACING * TEXT_M * (len(wrapped) - number)
        marker.pose.orientation.w = 1.0
        message.markers.append(marker)
    return message


def robot_to_markers(robot: Robot, base_T_links: NDArray[np.float64], contact: bool) -> Any:
    """Draw a robot transparently, red if the plan has a contact.

    Args:
        robot: the robot.
        base_T_links: (L, 4, 4) poses of its links, in the order of `robot.links`.
        contact: whether the report states a contact.
    """
    message = MarkerArray()
    tint = RED if contact else BLUE
    colour = ColorRGBA(r=tint.r, g=tint.g, b=tint.b, a=_GHOST_ALPHA)
    for link, pose in zip(robot.links, base_T_links, strict=True):
        for shape in link.visuals:
            marker = _shape_to_marker(shape)
            marker.header, marker.ns, marker.id = header(0, robot.base_link), "planned robot", len(message.markers)
            marker.action, marker.color, marker.pose = Marker.ADD, colour, matrix_to_pose(pose @ shape.link_T_geometry)
            message.markers.append(marker)
    return message


def wipe(frame_id: str) -> Any:
    """Delete all markers of a topic."""
    return MarkerArray(markers=[Marker(header=header(0, frame_id), action=Marker.DELETEALL)])


def _shape_to_marker(shape: Geometry) -> Any:
    marker = Marker()
    if shape.kind == "mesh" and shape.path is not None:
        marker.type, marker.mesh_resource = Marker.MESH_RESOURCE, shape.path.resolve().as_uri()
        scale = shape.size or (1.0, 1.0, 1.0)
    elif shape.kind == "cylinder":
        marker.type = Marker.CYLINDER
        scale = (2 * shape.size[0], 2 * shape.size[0], shape.size[1])
    elif shape.kind == "sphere":
        marker.type = Marker.SPHERE
        scale = (2 * shape.size[0],) * 3
    else:
        marker.type = Marker.CUBE
        scale = shape.size
    marker.scale.x, marker.scale.y, marker.scale.z = (float(value) for value in scale)
    return marker


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)
