"""Imports go downward only: ros -> kinema4d_model -> core; the core imports neither ROS nor torch."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kinema4d_ros"
MODEL = ROOT / "model" / "kinema4d_model"
ROS_FOLDERS = {"ros"}
PLAIN = {"kinema4d_ros.ros.graph"}
"""The node graph is data: it imports nothing of ROS, and the command line starts it."""
ROS = {
    "rclpy", "tf2_ros", "cv_bridge", "launch", "launch_ros", "kinema4d_msgs", "sensor_msgs", "std_msgs",
    "geometry_msgs", "trajectory_msgs", "nav_msgs", "visualization_msgs", "diagnostic_msgs", "builtin_interfaces",
    "rcl_interfaces", "tf2_msgs", "moveit_msgs", "control_msgs", "ament_index_python", "action_msgs", "std_srvs",
    "rosgraph_msgs", "unique_identifier_msgs", "rosidl_runtime_py", "rosbag2_py", "object_recognition_msgs",
}  # fmt: skip
SPEAKS_ROS = {"kinematics/moveit_child.py"}
"""MoveIt is a ROS library: its poses are messages. Nothing else in the core may."""

HEAVY = {
    "torch",
    "diffusers",
    "peft",
    "transformers",
    "accelerate",
    "safetensors",
    "torchao",
    "huggingface_hub",
    "sam2",
}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imported(path: Path) -> set[tuple[str, bool]]:
    """(module, at the top level of the file) of every import statement."""
    tree = parsed(path)
    top = {id(node) for node in tree.body}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.name, id(node) in top) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add((node.module, id(node) in top))
    return found


def folder(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def below(module: str) -> str:
    """The folder of kinema4d_ros that a module belongs to; empty for other packages."""
    return module.split(".")[1] if module.startswith("kinema4d_ros.") else ""


def upward_import(path: Path, module: str, at_top: bool) -> str | None:
    """Why this module of kinema4d_ros may not import that one; None when it may."""
    where, root = folder(path), module.split(".")[0]
    core = where not in ROS_FOLDERS and str(path.relative_to(PACKAGE)) not in SPEAKS_ROS
    if core and not (where == "cli" and not at_top):
        if root in ROS:
            return "is ROS, and this is the core"
        if below(module) in ROS_FOLDERS and module not in PLAIN:
            return "is above the core"
    nodes = PACKAGE / "ros" / "nodes"
    if where == "ros" and nodes not in path.parents and module.startswith("kinema4d_ros.ros.nodes"):
        return "is a node, above the other modules of ros/"
    # `doctor` asks torch about the GPU, inside a function, when torch is installed.
    if root in HEAVY and not (path.name == "doctor.py" and not at_top):
        return "belongs in kinema4d_model"
    # Without torch, everything but the learned generator must still start.
    if root == "kinema4d_model" and at_top:
        return "must be imported inside a function"
    return None


def test_imports_go_downward() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) > 100
    found = [(p, m, upward_import(p, m, at_top)) for p in paths for m, at_top in imported(p)]
    assert not [f"{p.relative_to(ROOT)}: {m} {why}" for p, m, why in found if why]


def test_the_model_knows_no_ros() -> None:
    paths = sorted(MODEL.rglob("*.py"))
    assert len(paths) > 50
    above = {*ROS_FOLDERS, "cli", "web"}
    found = [(p, m) for p in paths for m, _ in imported(p) if m.split(".")[0] in ROS or below(m) in above]
    assert not [f"{p.relative_to(ROOT)}: {m} is above the model" for p, m in found]


def test_every_module_says_what_it_is_for() -> None:
    paths = sorted([*PACKAGE.rglob("*.py"), *MODEL.rglob("*.py")])
    first = {p: (ast.get_docstring(parsed(p)) or "").partition("\n")[0] for p in paths}
    assert not [f"{p.relative_to(ROOT)}: docstring {line!r}" for p, line in first.items() if len(line) <= 20]


@pytest.mark.parametrize(
    ("path", "module", "at_top"),
    [
        ("core/camera.py", "rclpy.node", False),
        ("core/camera.py", "kinema4d_ros.ros.qos", True),
        ("cli/sim.py", "kinema4d_ros.ros.nodes.twin", True),
        ("ros/qos.py", "kinema4d_ros.ros.nodes.twin", True),
        ("core/rollout.py", "torch", False),
        ("ros/nodes/generator.py", "kinema4d_model.pipeline.backend", True),
    ],
)
def test_upward_imports_are_found(path: str, module: str, at_top: bool) -> None:
    assert upward_import(PACKAGE / path, module, at_top)
