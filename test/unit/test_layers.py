"""Imports go downward only: nodes -> bridge -> core and nodes -> kinema4d_model -> core; the core knows no torch."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kinema4d_ros"
MODEL = ROOT / "model" / "kinema4d_model"
ROS_FOLDERS = {"nodes", "bridge"}
ROS = {
    "rclpy", "tf2_ros", "cv_bridge", "launch", "launch_ros", "kinema4d_msgs", "sensor_msgs", "std_msgs",
    "geometry_msgs", "trajectory_msgs", "nav_msgs", "visualization_msgs", "diagnostic_msgs", "builtin_interfaces",
    "rcl_interfaces", "tf2_msgs", "moveit_msgs", "control_msgs", "ament_index_python", "action_msgs", "std_srvs",
    "rosgraph_msgs", "unique_identifier_msgs", "rosidl_runtime_py", "rosbag2_py", "object_recognition_msgs",
}  # fmt: skip
SPEAKS_ROS = {"kinematics/moveit_backend.py"}
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


def imported(path: Path) -> set[tuple[str, bool]]:
    """(module, at the top level of the file) of every import statement."""
    tree = ast.parse(path.read_text(), str(path))
    top = {id(node) for node in tree.body}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.name, id(node) in top) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add((node.module, id(node) in top))
    return found


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def model_modules() -> list[Path]:
    return sorted(MODEL.rglob("*.py"))


def folder(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_downward(path: Path) -> None:
    where = folder(path)
    for module, at_top in imported(path):
        root = module.split(".")[0]
        below = module.split(".")[1] if module.startswith("kinema4d_ros.") else ""
        core = where not in ROS_FOLDERS and str(path.relative_to(PACKAGE)) not in SPEAKS_ROS
        if core and not (where == "cli" and not at_top):
            assert root not in ROS, f"{module} is ROS, and this is the core"
            assert below not in ROS_FOLDERS, f"{module} is above the core"
        if where == "bridge":
            assert below != "nodes", f"{module} is above the bridge"
        # The doctor looks at the GPU through torch, inside a function, when torch is there.
        assert root not in HEAVY or (path.name == "health.py" and not at_top), f"{module} belongs in kinema4d_model"
        # Where torch is missing, everything but the learned generator must still start.
        assert root != "kinema4d_model" or not at_top, f"{module} must be imported inside a function"


@pytest.mark.parametrize("path", model_modules(), ids=lambda p: str(p.relative_to(MODEL)))
def test_the_model_knows_no_ros(path: Path) -> None:
    for module, _ in imported(path):
        assert module.split(".")[0] not in ROS, f"{module} is ROS, and this is the model"
        below = module.split(".")[1] if module.startswith("kinema4d_ros.") else ""
        assert below not in {*ROS_FOLDERS, "cli", "viewer"}, f"{module} is above the model"


@pytest.mark.parametrize("path", [*modules(), *model_modules()], ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, "no docstring"
    assert len(docstring.splitlines()[0]) > 20
