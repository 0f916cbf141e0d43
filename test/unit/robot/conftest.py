"""Small robots and meshes written to a folder, for tests of the readers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kinema4d_ros.robot.primitives import box_mesh

TWO_LINKS = """
<robot name="two">
  <link name="a"/>
  <link name="b"/>
  <joint name="j" type="revolute">
    <parent link="a"/><child link="b"/>
    <origin xyz="0.1 0.2 0.3" rpy="0.1 0.2 0.3"/>
    <axis xyz="0 0 2"/>
    <limit lower="-1" upper="2" effort="3" velocity="4"/>
  </joint>
</robot>
"""


@pytest.fixture
def two_links() -> str:
    """Return the URDF text of the smallest robot that moves; tests change a part of it."""
    return TWO_LINKS


@pytest.fixture
def write_urdf(tmp_path: Path) -> Callable[[str], Path]:
    """Write URDF text to its own folder and return the path."""

    def write(text: str, name: str = "robot.urdf") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def cube_stl() -> bytes:
    """Return a binary STL cube with an edge of 1, closed and wound outwards."""
    mesh = box_mesh((1.0, 1.0, 1.0))
    return binary_stl(mesh.vertices[mesh.faces])


def binary_stl(corners: np.ndarray) -> bytes:
    """Return STL bytes of (F, 3, 3) corners."""
    facets = b"".join(struct.pack("<12fH", 0, 0, 0, *triangle.ravel(), 0) for triangle in corners)
    return b"test".ljust(80) + struct.pack("<I", len(corners)) + facets
