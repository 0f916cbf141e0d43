"""`ros2 launch kinema4d_ros sim.launch.py`: the whole graph. `--show-args` lists the arguments."""

from kinema4d_ros.ros.graph import SIM_ARGUMENTS, sim_graph
from kinema4d_ros.ros.launching import launch_description


def generate_launch_description():  # noqa: D103 (name required by launch)
    return launch_description(SIM_ARGUMENTS, sim_graph)
