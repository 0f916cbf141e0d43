"""package.xml: complete, and every key is one that rosdep resolves on Ubuntu 24.04 with ROS 2 Jazzy without pip."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import defusedxml.ElementTree

ROOT = Path(__file__).resolve().parents[2]

RELEASED = {
    "action_msgs", "ament_cmake", "ament_index_python", "builtin_interfaces", "control_msgs", "diagnostic_msgs",
    "geometry_msgs", "interactive_markers", "launch", "launch_ros", "moveit_msgs", "nav_msgs", "pinocchio",
    "rcl_interfaces", "rclpy", "ros2launch", "rosgraph_msgs", "rosidl_default_generators", "rosidl_default_runtime",
    "rviz2", "sensor_msgs", "shape_msgs", "std_msgs", "tf2_msgs", "tf2_ros", "tf2_ros_py", "trajectory_msgs",
    "urdfdom_py", "visualization_msgs", "xacro",
}  # fmt: skip
"""Packages of rosdistro's jazzy/distribution.yaml that have a release for Ubuntu 24.04."""

DEBIAN = {
    "python3-collada", "python3-defusedxml", "python3-hypothesis", "python3-jinja2", "python3-numpy",
    "python3-opencv", "python3-pil", "python3-pytest", "python3-tqdm", "python3-yaml",
}  # fmt: skip
"""Keys of rosdistro's rosdep/python.yaml whose Debian package Ubuntu 24.04 has. It has no python3-numba, although the
key names it, and keys that end in -pip do not install there."""

MODULES = {
    "PIL": "python3-pil", "collada": "python3-collada", "cv2": "python3-opencv", "defusedxml": "python3-defusedxml",
    "jinja2": "python3-jinja2", "numpy": "python3-numpy", "tqdm": "python3-tqdm",
    "yaml": "python3-yaml", "urdf_parser_py": "urdfdom_py", "tf2_ros": "tf2_ros_py", "warp": "warp-lang",
    "markupsafe": "python3-jinja2",
}  # fmt: skip
"""Key, or name on PyPI, of modules that are called otherwise."""

OPTIONAL = {"coal", "cv_bridge", "gymnasium", "i2rt", "moveit", "open3d", "playwright", "ray", "torch"}
"""Imported where they are used, with an error or another way when they are missing."""

OURS = {"kinema4d_ros", "kinema4d_model", "kinema4d_msgs"}


def dependencies(path: Path) -> set[str]:
    root = defusedxml.ElementTree.parse(path).getroot()
    assert root is not None
    return {(element.text or "").strip() for element in root if element.tag.endswith("depend")}


def lines(name: str) -> set[str]:
    text = (ROOT / "requirements" / name).read_text().splitlines()
    return {line.strip() for line in text if line.strip() and not line.startswith("#")}


def test_every_rosdep_key_exists() -> None:
    keys = dependencies(ROOT / "package.xml") | dependencies(ROOT / "kinema4d_msgs" / "package.xml")
    assert keys - RELEASED - DEBIAN - OURS == set()


def test_every_import_is_a_dependency() -> None:
    declared = dependencies(ROOT / "package.xml") | lines("noble.in") | OPTIONAL | OURS
    library = set(sys.stdlib_module_names)
    missing = set()
    for path in [*(ROOT / "kinema4d_ros").rglob("*.py"), *(ROOT / "launch").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for module in {name.split(".")[0] for name in names} - library:
                if MODULES.get(module, module) not in declared:
                    missing.add(f"{module} ({path.name})")
    assert missing == set()


def test_what_rosdep_lacks_is_what_the_package_needs_from_pypi() -> None:
    assert lines("noble.in") <= lines("runtime.in")
    pinned = lines("constraints-noble.txt")
    assert all("==" in line for line in pinned)
    assert "numpy==1.26.4" in pinned
