"""The node graph, stated once: `launch/*.launch.py` and `kinema4d sim` are two renderings of it.

lab ── joint states, image ──> twin ── TF, live points, overlay
                               preview ── plan in, robot frames out ──> generator (an action)
                                  └── rollout, report, markers ──> playback ──> RViz, viewer
viewer / person ── approve, execute ──> gate ── the approved plan ──> arm, or lab
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kinema4d_ros.core.errors import ErrorCode, KinemaError

__all__ = [
    "GENERATOR_ARGUMENTS",
    "SIM_ARGUMENTS",
    "Argument",
    "NodeSpec",
    "generator_graph",
    "read_arguments",
    "sim_graph",
]

Value = bool | int | float | str
Kind = Literal["bool", "text"]


@dataclass(frozen=True)
class Argument:
    """A launch argument: `name:=value` in a launch, `--name value` on the command line."""

    name: str
    default: str
    description: str
    kind: Kind = "text"

    @property
    def choices(self) -> tuple[str, ...]:
        """What the value may be; empty when anything may."""
        return ("true", "false") if self.kind == "bool" else ()


@dataclass(frozen=True)
class NodeSpec:
    """One process of the graph.

    Attributes:
        name: of the node, and of its module in `kinema4d_ros.ros.nodes`.
        purpose: for the status line.
        parameters: ROS parameters that the arguments decide; all others are in the params file.
        essential: the graph is of no use without it.
    """

    name: str
    purpose: str
    parameters: Mapping[str, Value] = field(default_factory=dict)
    essential: bool = True

    @property
    def module(self) -> str:
        """For `python -m`."""
        return f"kinema4d_ros.ros.nodes.{self.name}"

    @property
    def executable(self) -> str:
        """For launch_ros and `ros2 run`."""
        return f"kinema4d_{self.name}"

    @property
    def enclave(self) -> str:
        """Whose keys and rights it has where ROS security is on: see config/sros2."""
        return f"/kinema4d/{self.name}"


ROBOT = Argument("robot", "yam", "a robot's name, or the path of a .urdf or .xacro file")
CALIBRATION = Argument("calibration", "demo_lab", "the camera: a path, or a name in calibration/")
PRESET = Argument(
    "preset",
    "auto",
    "what predicts the world: nano, wan14b, a preset file's path, composite (no learning), package.module:Class, or "
    "auto: nano if it can run",
)
CHECKPOINT = Argument("checkpoint", "", "folder of the model's weights; default: the preset's own")
DEVICE = Argument("device", "auto", "where the generator runs: auto, cpu or cuda")
NAMESPACE = Argument("namespace", "", "ROS namespace of the whole graph")
PARAMS_FILE = Argument("params_file", "", "ROS parameters; default: config/sim.yaml")
SIM_TIME = Argument("use_sim_time", "false", "take the time from /clock", "bool")

SIM_ARGUMENTS: tuple[Argument, ...] = (
    ROBOT,
    CALIBRATION,
    PRESET,
    CHECKPOINT,
    DEVICE,
    Argument("lab", "true", "simulate arm, camera and table; false with the real ones", "bool"),
    Argument("scenario", "canonical", "the lab's table: canonical, cluttered or dynamic"),
    Argument("seed", "0", "of the lab's table"),
    Argument("generator", "true", "generate on this machine; false when another one does", "bool"),
    Argument("viewer", "true", "serve the web page", "bool"),
    Argument("rviz", "false", "start RViz (needs a ROS distribution)", "bool"),
    Argument("record", "false", "record an MCAP bag of the session", "bool"),
    Argument("evaluation", "false", "offer to judge policies (the evaluate action)", "bool"),
    NAMESPACE,
    PARAMS_FILE,
    SIM_TIME,
)

GENERATOR_ARGUMENTS: tuple[Argument, ...] = (PRESET, CHECKPOINT, DEVICE, NAMESPACE, PARAMS_FILE, SIM_TIME)


def read_arguments(arguments: Iterable[Argument], given: Mapping[str, str]) -> dict[str, str]:
    """Defaults and given values together; unknown names and bad values are refused."""
    known = {argument.name: argument for argument in arguments}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise _refuse(f"argument '{unknown[0]}' is not known", f"one of {', '.join(known)}")
    values = {name: given.get(name, argument.default) for name, argument in known.items()}
    for name, argument in known.items():
        if argument.choices and values[name].lower() not in argument.choices:
            raise _refuse(f"{name} is '{values[name]}'", " or ".join(argument.choices))
        if argument.choices:
            values[name] = values[name].lower()
    return values


def sim_graph(values: Mapping[str, str]) -> tuple[NodeSpec, ...]:
    """The nodes of `sim.launch.py` for complete argument values."""

    def on(name: str) -> bool:
        return values[name].lower() == "true"

    scene = {"robot": values["robot"], "calibration": values["calibration"]}
    try:
        seed = int(values["seed"])
    except ValueError:
        raise _refuse(f"seed is '{values['seed']}'", "a whole number") from None
    every: tuple[tuple[bool, Callable[[], NodeSpec]], ...] = (
        (
            on("lab"),
            lambda: NodeSpec(
                "lab", "arm, camera and table, simulated", {**scene, "scenario": values["scenario"], "seed": seed}
            ),
        ),
        (True, lambda: NodeSpec("twin", "the live robot: TF, points, overlay", scene)),
        (True, lambda: NodeSpec("preview", "plans in, rollouts and reports out", scene)),
        (on("generator"), lambda: _generator(values)),
        (True, lambda: NodeSpec("playback", "plays the newest rollout")),
        (True, lambda: NodeSpec("gate", "lets approved plans reach the arm", {"robot": values["robot"]})),
        (on("viewer"), lambda: NodeSpec("viewer", "the web page", {**scene, "lab": on("lab")}, essential=False)),
        (on("record"), lambda: NodeSpec("recorder", "records an MCAP bag", essential=False)),
        (on("evaluation"), lambda: NodeSpec("evaluation", "judges policies by rollouts", scene, essential=False)),
    )
    return tuple(make() for enabled, make in every if enabled)


def generator_graph(values: Mapping[str, str]) -> tuple[NodeSpec, ...]:
    """The nodes of `generator.launch.py`: the generator alone, for a GPU machine."""
    return (_generator(values),)


def _generator(values: Mapping[str, str]) -> NodeSpec:
    # ROS cannot pass an empty text on a command line, so what is empty is left to the node's own default.
    given = {name: values[name] for name in ("preset", "checkpoint", "device") if values[name]}
    return NodeSpec("generator", "predicts the world", given)


def _refuse(what: str, expected: str) -> KinemaError:
    return KinemaError(what, expected=expected, hint="see --help or --show-args", code=ErrorCode.ARGUMENT_INVALID)
