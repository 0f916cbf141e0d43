"""Launch descriptions of the graph for `launch/*.launch.py`. Requires launch and launch_ros."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from ament_index_python.packages import PackageNotFoundError, get_package_prefix
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction, Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from kinema4d_ros.core.errors import SetupError
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.ros.graph import Argument, NodeSpec, RvizExtra, read_arguments, rviz_arguments
from kinema4d_ros.ros.moveit import MoveItRun, moveit_run
from kinema4d_ros.ros.names import RECORDED
from kinema4d_ros.runtime.child import launched_by_me, tied_to_me
from kinema4d_ros.runtime.processes import FATAL_EXIT

__all__ = ["launch_description"]

LEAVE_S = 15
"""Seconds for a node to exit after Ctrl-C; launch's default of 5 s is too short on a loaded machine."""


def launch_description(arguments: Sequence[Argument], graph: Callable[[dict[str, str]], tuple[NodeSpec, ...]]) -> Any:
    """Declare the graph's arguments and start its nodes once their values are known.

    The nodes exit with the launch process, however it ends: see `kinema4d_ros.runtime.child`.
    """

    def start(context: Any) -> list[Any]:
        given = {a.name: LaunchConfiguration(a.name).perform(context) for a in arguments}
        values = read_arguments(arguments, given)
        moveit = moveit_run(values) if values.get("moveit", "").lower() == "true" else None
        actions = [_node(spec, values) for spec in graph(values) if not _rosbag2_records(spec)]
        actions += [_rosbag2(values) for spec in graph(values) if _rosbag2_records(spec)]
        if moveit is not None:
            actions.append(_move_group(moveit))
        if values.get("rviz") == "true":
            actions.append(_rviz(values, moveit))
        return actions

    declared = [
        DeclareLaunchArgument(a.name, default_value=a.default, description=a.description, choices=a.choices or None)
        for a in arguments
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=start)])


def _node(spec: NodeSpec, values: dict[str, str]) -> Any:
    parameters = {**spec.parameters, "use_sim_time": values["use_sim_time"].lower() == "true"}
    return Node(
        package="kinema4d_ros",
        executable=spec.executable,
        name=spec.name,
        namespace=values["namespace"],
        parameters=[values["params_file"] or str(share_path("config/sim.yaml")), parameters],
        ros_arguments=["--enclave", spec.enclave],
        output="screen",
        respawn=True,
        respawn_delay=1.0,
        sigterm_timeout=str(LEAVE_S),
        additional_env=launched_by_me(),
        on_exit=lambda event, _context: _shutdown_without(spec, event.returncode),
    )


def _shutdown_without(spec: NodeSpec, code: int) -> list[Any]:
    """Shut the launch down when an essential node exits with FATAL_EXIT; crashed nodes are restarted."""
    if code != FATAL_EXIT or not spec.essential:
        return []
    return [Shutdown(reason=f"{spec.name} cannot run with its parameters; see its error above")]


def _move_group(moveit: MoveItRun) -> Any:
    return ExecuteProcess(
        cmd=tied_to_me(moveit.move_group),
        name="move_group",
        output="screen",
        respawn=True,
        respawn_delay=2.0,
        sigterm_timeout=str(LEAVE_S),
    )


def _rviz(values: dict[str, str], extra: RvizExtra | None) -> Any:
    try:
        get_package_prefix("rviz2")
    except PackageNotFoundError:  # checked here, before half of the nodes have started
        raise SetupError(
            "rviz2 is not installed", expected="the package rviz2", hint="omit rviz:=true and use the web page"
        ) from None
    return Node(
        package="rviz2",
        executable="rviz2",
        arguments=rviz_arguments(values, extra),
        prefix=" ".join(tied_to_me(())),
        output="screen",
    )


def _rosbag2_records(spec: NodeSpec) -> bool:
    return spec.name == "recorder" and find_spec("ros2bag") is not None


def _rosbag2(values: dict[str, str]) -> Any:
    prefix = f"/{values['namespace'].strip('/')}" if values["namespace"] else ""
    topics = [name if name.startswith("/") else f"{prefix}/{name}" for name in RECORDED]
    command = tied_to_me(["ros2", "bag", "record", "-s", "mcap", "--topics", *topics])
    return ExecuteProcess(cmd=command, output="screen")
