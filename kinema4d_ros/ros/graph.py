"""The node graph as data, used by both `launch/*.launch.py` and `kinema4d sim`.

lab, or arm and camera ── joint states, image ──> twin ── TF, live points, overlay
                               preview ── plan in, robot frames out ──> generator (an action)
                                  └── rollout, report, markers ──> playback ──> RViz, viewer
    └── objects ──> scene ──> MoveIt's move_group ── a plan ──> preview
viewer, rviz_marker / person ── approve, execute ──> gate ── the approved plan ──> arm, or lab
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.io.resources import calibration_path, share_path

__all__ = [
    "GENERATOR_ARGUMENTS",
    "SIM_ARGUMENTS",
    "Argument",
    "NodeSpec",
    "RvizExtra",
    "generator_graph",
    "read_arguments",
    "rviz_arguments",
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
        """Allowed values; empty when any text is allowed."""
        return ("true", "false") if self.kind == "bool" else ()


@dataclass(frozen=True)
class NodeSpec:
    """One process of the graph.

    Attributes:
        name: name of the node and of its module in `kinema4d_ros.ros.nodes`.
        purpose: text for the status line.
        parameters: ROS parameters set by the launch arguments; all others come from the params file.
        essential: whether the graph shuts down when this node cannot run.
    """

    name: str
    purpose: str
    parameters: Mapping[str, Value] = field(default_factory=dict)
    essential: bool = True

    @property
    def module(self) -> str:
        """Module name for `python -m`."""
        return f"kinema4d_ros.ros.nodes.{self.name}"

    @property
    def executable(self) -> str:
        """Executable name for launch_ros and `ros2 run`."""
        return f"kinema4d_{self.name}"

    @property
    def enclave(self) -> str:
        """SROS 2 enclave of the node: see config/sros2."""
        return f"/kinema4d/{self.name}"


ROBOT = Argument("robot", "yam", "a robot's name, or the path of a .urdf or .xacro file")
CALIBRATION = Argument("calibration", "demo_lab", "the camera: a path, or a name in calibration/")
PRESET = Argument(
    "preset",
    "auto",
    "the generator: nano, draft (physics; needs a depth camera), draft+nano, wan14b_pm (a real camera and a GPU), a "
    "preset file's path, composite or carry (no learning), package.module:Class, or auto: draft with a depth camera, "
    "otherwise nano if it can run",
)
CHECKPOINT = Argument("checkpoint", "", "folder of the model's weights; default: those of the preset")
DEVICE = Argument("device", "auto", "device of the generator: auto, cpu or cuda")
NAMESPACE = Argument("namespace", "", "ROS namespace of the whole graph")
PARAMS_FILE = Argument("params_file", "", "ROS parameters; default: config/sim.yaml")
SIM_TIME = Argument("use_sim_time", "false", "take the time from /clock, which the lab publishes", "bool")

SIM_ARGUMENTS: tuple[Argument, ...] = (
    ROBOT,
    CALIBRATION,
    PRESET,
    CHECKPOINT,
    DEVICE,
    Argument("lab", "true", "simulate arm, camera and table; false with real hardware", "bool"),
    Argument(
        "driver",
        "none",
        "run the real arm's driver here: i2rt (docs/real_arm.md) or package.module:Class; needs lab:=false",
    ),
    Argument("enable_motion", "false", "let approved plans move the arm of driver:=", "bool"),
    Argument("scenario", "canonical", "scene of the lab: canonical, cluttered, dynamic, stacked or held"),
    Argument("seed", "0", "random seed of the lab's scene"),
    Argument("generator", "true", "run the generator on this machine; false when it runs on another one", "bool"),
    Argument("viewer", "true", "serve the web page", "bool"),
    Argument("rviz", "false", "start RViz and the node of its menu (needs a ROS distribution)", "bool"),
    Argument(
        "moveit",
        "false",
        "start MoveIt's move_group, which plans and cannot execute, with table and lab objects as obstacles; with rviz "
        "also its panel (needs MoveIt)",
        "bool",
    ),
    Argument("record", "false", "record an MCAP bag of the session", "bool"),
    Argument("evaluation", "false", "serve the evaluate action, which scores policies", "bool"),
    NAMESPACE,
    PARAMS_FILE,
    SIM_TIME,
)

GENERATOR_ARGUMENTS: tuple[Argument, ...] = (ROBOT, PRESET, CHECKPOINT, DEVICE, NAMESPACE, PARAMS_FILE, SIM_TIME)


def read_arguments(arguments: Iterable[Argument], given: Mapping[str, str]) -> dict[str, str]:
    """Merge given values with the defaults; raise ARGUMENT_INVALID for unknown names and invalid values."""
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
    """Return the nodes of `sim.launch.py` for complete argument values."""

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
                "lab",
                "simulates arm, camera and table",
                {**scene, "scenario": values["scenario"], "seed": seed, "publish_clock": on("use_sim_time")},
            ),
        ),
        (values["driver"] != "none" or on("enable_motion"), lambda: _arm(values, on("lab"), on("enable_motion"))),
        (True, lambda: NodeSpec("twin", "the live robot: TF, points, overlay", scene)),
        (True, lambda: NodeSpec("preview", "plans in, rollouts and reports out", scene)),
        (on("generator"), lambda: _generator(values)),
        (True, lambda: NodeSpec("playback", "plays the newest rollout")),
        (True, lambda: NodeSpec("gate", "forwards approved plans to the arm", {"robot": values["robot"]})),
        (on("viewer"), lambda: NodeSpec("viewer", "the web page", {**scene, "lab": on("lab")}, essential=False)),
        (
            on("moveit"),
            lambda: NodeSpec("scene", "obstacles for MoveIt", {"robot": values["robot"]}, essential=False),
        ),
        (
            on("rviz"),
            lambda: NodeSpec("rviz_marker", "menu and text in RViz", {"robot": values["robot"]}, essential=False),
        ),
        (on("record"), lambda: NodeSpec("recorder", "records an MCAP bag", essential=False)),
        (on("evaluation"), lambda: NodeSpec("evaluation", "scores policies with rollouts", scene, essential=False)),
    )
    return tuple(make() for enabled, make in every if enabled)


def _arm(values: Mapping[str, str], lab: bool, motion: bool) -> NodeSpec:
    if values["driver"] == "none":
        raise _refuse("enable_motion is true without a driver", "driver:=i2rt, or enable_motion:=false")
    if lab:
        raise _refuse(f"driver is '{values['driver']}', and the lab simulates an arm", "lab:=false with a driver")
    given: dict[str, Value] = {
        "robot": values["robot"],
        "driver": values["driver"],
        "enable_motion": motion,
    }
    return NodeSpec("arm", "the real arm's driver and controller", given)


class RvizExtra(Protocol):
    """What RViz needs beyond the displays of this package, such as `ros.moveit.MoveItRun`."""

    @property
    def rviz_parameters(self) -> Path:
        """Parameter file of RViz's nodes."""
        ...

    def rviz_displays(self, config: Path) -> Path:
        """Write a display configuration with more displays and return its path."""
        ...


def rviz_arguments(values: Mapping[str, str], extra: RvizExtra | None = None) -> list[str]:
    """Return the arguments of rviz2: displays, fixed frame, namespace and clock. Its displays have relative topics."""
    from kinema4d_ros.calibration import read_pose

    config = share_path("config/rviz/sim.rviz")
    if extra is not None:
        config = extra.rviz_displays(config)
    frame = read_pose(calibration_path(values["calibration"])).parent_frame
    arguments = ["-d", str(config), "-f", frame, "--ros-args"]
    if extra is not None:
        arguments += ["--params-file", str(extra.rviz_parameters)]
    if values["namespace"]:
        arguments += ["-r", f"__ns:=/{values['namespace'].strip('/')}"]
    return [*arguments, "-p", f"use_sim_time:={values['use_sim_time'].lower()}"]


def generator_graph(values: Mapping[str, str]) -> tuple[NodeSpec, ...]:
    """Return the nodes of `generator.launch.py`: the generator alone, for a GPU machine."""
    return (_generator(values),)


def _generator(values: Mapping[str, str]) -> NodeSpec:
    # ROS cannot pass an empty string on a command line, so empty values are left to the node's default.
    given = {name: values[name] for name in ("robot", "preset", "checkpoint", "device") if values[name]}
    return NodeSpec("generator", "generates rollouts", given)


def _refuse(what: str, expected: str) -> KinemaError:
    return KinemaError(what, expected=expected, hint="see --help or --show-args", code=ErrorCode.ARGUMENT_INVALID)
