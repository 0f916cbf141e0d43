"""`ros2 launch kinema4d_ros generator.launch.py`: the generator alone, for a GPU machine."""

from kinema4d_ros.ros.graph import GENERATOR_ARGUMENTS, generator_graph
from kinema4d_ros.ros.launching import launch_description


def generate_launch_description():  # noqa: D103 (name required by launch)
    return launch_description(GENERATOR_ARGUMENTS, generator_graph)
