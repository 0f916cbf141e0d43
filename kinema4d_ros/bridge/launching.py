"""The graph as launch actions: what `launch/*.launch.py` return. Needs a ROS distribution's launch and launch_ros."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from kinema4d_ros.bridge.names import RECORDED
from kinema4d_ros.graph import Argument, NodeSpec, read_arguments
from kinema4d_ros.resources import share_path

__all__ = ["launch_description"]

LEAVE_S = 15
"""How long a node may take to end after Ctrl-C: on a loaded machine launch's own 5 s are too short."""


def launch_description(arguments: Sequence[Argument], graph: Callable[[dict[str, str]], tuple[NodeSpec, ...]]) -> Any:
    """Declares the graph's arguments and starts its nodes once their values are known."""

    def start(context: Any) -> list[Any]:
        given = {a.name: LaunchConfiguration(a.name).perform(context) for a in arguments}
        values = read_arguments(arguments, given)
        actions = [_node(spec, values) for spec in graph(values) if not _rosbag2_records(spec)]
        actions += [_rosbag2(values) for spec in graph(values) if _rosbag2_records(spec)]
        if values.get("rviz") == "true":
            config = str(share_path("config/rviz/sim.rviz"))
            actions.append(Node(package="rviz2", executable="rviz2", arguments=["-d", config], output="screen"))
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
    )


def _rosbag2_records(spec: NodeSpec) -> bool:
    return spec.name == "recorder" and find_spec("ros2bag") is not None


def _rosbag2(values: dict[str, str]) -> Any:
    prefix = f"/{values['namespace'].strip('/')}" if values["namespace"] else ""
    topics = [name if name.startswith("/") else f"{prefix}/{name}" for name in RECORDED]
    return ExecuteProcess(cmd=["ros2", "bag", "record", "-s", "mcap", "--topics", *topics], output="screen")
