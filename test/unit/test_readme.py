"""The README says what the code does: its table of endpoints is the code's, its commands and links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from kinema4d_ros.ros.names import markdown_table

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_table_of_endpoints_is_the_code_s() -> None:
    written = README.split("<!-- endpoints: begin -->")[1].split("<!-- endpoints: end -->")[0]
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
