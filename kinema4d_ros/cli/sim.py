"""`kinema4d sim`: run the whole graph as supervised processes on this machine, without a ROS distribution.

Arguments are those of `ros2 launch kinema4d_ros sim.launch.py`, written --name value. Stop with Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kinema4d_ros.core.errors import SetupError
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.ros.graph import (
    GENERATOR_ARGUMENTS,
    SIM_ARGUMENTS,
    Argument,
    NodeSpec,
    RvizExtra,
    generator_graph,
    rviz_arguments,
    sim_graph,
)
from kinema4d_ros.ros.graph import read_arguments as read
from kinema4d_ros.runtime.child import on_end_signal, tied_to_me
from kinema4d_ros.runtime.processes import ProcessSpec, Supervisor, require_shared_memory

__all__ = ["add_graph_arguments", "graph_environment", "node_process", "register", "run"]


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verbs `sim` and `generator` to the parser."""
    sim = verbs.add_parser(
        "sim",
        help="run the whole graph on this machine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_graph_arguments(sim, SIM_ARGUMENTS)
    sim.add_argument("--headless", action="store_true", help="run the demo to its end, save it and exit")
    sim.add_argument("--out", type=Path, default=Path("out/demo"), help="folder of --headless (default: out/demo)")
    sim.add_argument("--port", type=int, default=8080, help="port of the web page; 0: any free port (default: 8080)")
    sim.set_defaults(run=run)
    alone = verbs.add_parser("generator", help="run the generator alone, for a GPU machine")
    add_graph_arguments(alone, GENERATOR_ARGUMENTS)
    alone.set_defaults(run=run_generator)


def add_graph_arguments(parser: argparse.ArgumentParser, arguments: Sequence[Argument]) -> None:
    """Add the graph's arguments as options."""
    for argument in arguments:
        parser.add_argument(
            f"--{argument.name.replace('_', '-')}",
            dest=argument.name,
            default=argument.default,
            choices=argument.choices or None,
            metavar="|".join(argument.choices) or argument.name.upper(),
            help=f"{argument.description} (default: {argument.default or 'none'})",
        )


def graph_environment() -> dict[str, str]:
    """Return extra environment variables of the nodes: DDS on loopback with buffers for clouds, unless set already."""
    environment: dict[str, str] = {}
    if "FASTRTPS_DEFAULT_PROFILES_FILE" not in os.environ and "ROS_AUTOMATIC_DISCOVERY_RANGE" not in os.environ:
        environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
        environment["FASTRTPS_DEFAULT_PROFILES_FILE"] = str(share_path("config/fastdds_loopback.xml"))
    return environment


def node_process(spec: NodeSpec, values: dict[str, str]) -> ProcessSpec:
    """Make the process of a node: its module with ROS arguments."""
    command = [sys.executable, "-m", spec.module, "--ros-args", "--enclave", spec.enclave]
    if values["namespace"]:
        command += ["-r", f"__ns:=/{values['namespace'].strip('/')}"]
    command += ["--params-file", values["params_file"] or str(share_path("config/sim.yaml"))]
    parameters = {**spec.parameters, "use_sim_time": values["use_sim_time"].lower() == "true"}
    for name, value in parameters.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        command += ["-p", f"{name}:={text}"]
    return ProcessSpec(spec.name, command, graph_environment(), spec.essential)


def run(arguments: argparse.Namespace) -> int:
    """Run the graph until a signal or a failure ends it."""
    values = read(SIM_ARGUMENTS, {a.name: getattr(arguments, a.name) for a in SIM_ARGUMENTS})
    specs = list(sim_graph(values))
    processes = []
    for spec in specs:
        process = node_process(spec, values)
        if spec.name == "viewer":
            process = replace(process, command=[*process.command, "-p", f"port:={arguments.port}"])
        processes.append(process)
    moveit = None
    if values["moveit"] == "true":
        from kinema4d_ros.ros.moveit import moveit_run

        moveit = moveit_run(values)
        processes.append(ProcessSpec("move_group", tied_to_me(moveit.move_group), graph_environment(), essential=False))
    if values["rviz"] == "true":
        processes.append(_rviz(values, moveit))
    if arguments.headless:
        from kinema4d_ros.cli.demo import run_demo

        return run_demo(processes, arguments.out, values, arguments.port)
    return _supervise(processes)


def run_generator(arguments: argparse.Namespace) -> int:
    """Run the generator until a signal or a failure ends it."""
    values = read(GENERATOR_ARGUMENTS, {a.name: getattr(arguments, a.name) for a in GENERATOR_ARGUMENTS})
    return _supervise([node_process(spec, values) for spec in generator_graph(values)])


def _rviz(values: dict[str, str], extra: RvizExtra | None = None) -> ProcessSpec:
    program = shutil.which("rviz2")
    if program is None:
        raise SetupError(
            "rviz2 is not installed", expected="a ROS distribution", hint="omit --rviz and use the web page"
        )
    command = tied_to_me([program, *rviz_arguments(values, extra)])
    return ProcessSpec("rviz", command, graph_environment())


def _supervise(processes: Sequence[ProcessSpec]) -> int:
    require_shared_memory()
    supervisor = Supervisor(processes)
    on_end_signal(supervisor.stop.set)
    supervisor.run(until=lambda: supervisor.failed)
    print("ended")
    return 2 if supervisor.failed else 0
