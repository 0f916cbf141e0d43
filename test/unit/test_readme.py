"""The documents say what the code does: table of endpoints, links, make targets, the tree and the path of a plan."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from kinema4d_ros.ros.names import markdown_table

ROOT = Path(__file__).resolve().parents[2]
ROS_DOCUMENT = (ROOT / "docs" / "ros.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_table_of_endpoints_is_the_code_s() -> None:
    written = ROS_DOCUMENT.split("<!-- endpoints: begin -->")[1].split("<!-- endpoints: end -->")[0]
    assert written.strip() == markdown_table().strip()


def test_local_links_lead_somewhere() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "calibration" / "README.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_make_targets_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for name in re.findall(r"`make ([a-z-]+)", path.read_text()) + re.findall(
            r"^make ([a-z-]+)", path.read_text(), re.MULTILINE
        ):
            assert name in targets, f"{path.name} speaks of 'make {name}'"


def test_the_path_of_a_plan_is_short_and_exists() -> None:
    path = ARCHITECTURE.split("## The path of a plan")[1].split("modules of `kinema4d_ros`")[0]
    named = set(re.findall(r"`([a-z]+/[a-z_/]+\.py)`", path)) - {"pipeline/backend.py"}
    assert [name for name in named if not (ROOT / "kinema4d_ros" / name).is_file()] == []
    assert len(named) <= 25
    assert len({name.split("/")[0] for name in named}) <= 8
    assert f"\n{len(named)} modules of `kinema4d_ros`" in ARCHITECTURE


def test_the_tree_of_the_document_is_the_tree() -> None:
    tree = ARCHITECTURE.split("## The tree")[1].split("## ")[0]
    written = set(re.findall(r"^  ([a-z]+)/ ", tree.split("model/kinema4d_model/")[0], re.MULTILINE))
    assert written == {path.name for path in (ROOT / "kinema4d_ros").iterdir() if (path / "__init__.py").is_file()}
