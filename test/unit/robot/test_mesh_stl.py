from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d_ros.core.errors import ErrorCode, MeshError
from kinema4d_ros.robot.meshes import read_stl

ASCII = b"""solid thing
  facet normal 0 0 1
    outer loop
      vertex 0 0 0
      vertex 1.5e0 0 0
      vertex 0 -2 0.25
    endloop
  endfacet
endsolid thing
"""


def test_binary(cube_stl: bytes) -> None:
    soup = read_stl(cube_stl, "cube.stl")
    assert soup.vertices.shape == (36, 3)
    assert soup.vertices.dtype == np.float64
    assert np.abs(soup.vertices).max() == 0.5
    np.testing.assert_array_equal(soup.faces.ravel(), np.arange(36))


def test_binary_with_a_header_that_says_solid(cube_stl: bytes) -> None:
    data = b"solid facet endsolid".ljust(80) + cube_stl[80:]
    np.testing.assert_array_equal(read_stl(data, "c").vertices, read_stl(cube_stl, "c").vertices)


def test_binary_with_bytes_after_the_facets(cube_stl: bytes) -> None:
    assert len(read_stl(cube_stl + b"colours", "c").vertices) == 36


@pytest.mark.parametrize("data", [ASCII, ASCII.replace(b"\n", b"\r\n"), b"\n  " + ASCII.replace(b"  ", b"\t")])
def test_ascii(data: bytes) -> None:
    np.testing.assert_array_equal(read_stl(data, "a.stl").vertices, [[0, 0, 0], [1.5, 0, 0], [0, -2, 0.25]])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        b"\xff" * 200,
        ASCII[:100],
        ASCII.replace(b"vertex 0 -2 0.25\n", b""),
        ASCII.replace(b"-2", b"two"),
    ],
)
def test_broken_files(data: bytes) -> None:
    with pytest.raises(MeshError) as caught:
        read_stl(data, "bad.stl")
    assert caught.value.code is ErrorCode.MESH_MALFORMED
    assert "bad.stl" in str(caught.value)


def test_the_error_of_a_truncated_binary_names_the_sizes(cube_stl: bytes) -> None:
    with pytest.raises(MeshError, match=r"claims 12 facets but has 634 bytes; expected 684 bytes"):
        read_stl(cube_stl[:-50], "cut.stl")


def test_a_huge_facet_count_allocates_no_memory(cube_stl: bytes) -> None:
    data = cube_stl[:80] + struct.pack("<I", 2**32 - 1) + cube_stl[84:]
    tracemalloc.start()
    try:
        with pytest.raises(MeshError, match="4294967295"):
            read_stl(data, "huge.stl")
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_garbage_is_refused_or_read_but_never_crashes(data: bytes) -> None:
    try:
        soup = read_stl(data, "fuzz.stl")
    except MeshError:
        return
    assert len(soup.vertices) == 3 * len(soup.faces)
