"""`ros2 launch kinema4d_ros generator.launch.py`: the generator alone, for a GPU machine."""

from kinema4d_ros.bridge.launching import launch_description
from kinema4d_ros.graph import GENERATOR_ARGUMENTS, generator_graph


def generate_launch_description():  # noqa: D103 (the name that launch looks for)
    return launch_description(GENERATOR_ARGUMENTS, generator_graph)
