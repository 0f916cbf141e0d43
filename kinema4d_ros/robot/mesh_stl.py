"""STL files, binary and ASCII, as raw triangles."""

from __future__ import annotations

import re

import numpy as np

from kinema4d_ros.core.errors import MeshError
from kinema4d_ros.robot.topology import Soup

__all__ = ["read_stl"]

_HEADER_BYTES = 84
_FACET = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
# A number has a few letters; a long one would make the table below as wide for all of them.
_VERTEX_LINE = re.compile(rb"^[ \t]*vertex[ \t]+(\S{1,40})[ \t]+(\S{1,40})[ \t]+(\S{1,40})[ \t]*\r?$", re.MULTILINE)


def read_stl(data: bytes, name: str) -> Soup:
    """Three vertices per facet, file units; normals and attributes are ignored.

    The claimed facet count is compared with the file's size first, so a broken header costs no memory.
    """
    count = int.from_bytes(data[80:84], "little") if len(data) >= _HEADER_BYTES else -1
    if count >= 0 and len(data) == _HEADER_BYTES + count * _FACET.itemsize:
        facets = np.frombuffer(data, dtype=_FACET, offset=_HEADER_BYTES)
        return _soup(facets["corners"].astype(np.float64).reshape(-1, 3))
    # Binary headers may start with "solid" too: only a file that also speaks of facets is text.
    if data.lstrip()[:5].lower() == b"solid" and (b"facet" in data or b"endsolid" in data):
        return _read_ascii(data, name)
    if count >= 0 and len(data) > _HEADER_BYTES + count * _FACET.itemsize > _HEADER_BYTES:
        # Some exporters append a colour table or padding after the facets.
        facets = np.frombuffer(data, dtype=_FACET, offset=_HEADER_BYTES, count=count)
        return _soup(facets["corners"].astype(np.float64).reshape(-1, 3))
    if count < 0:
        raise MeshError(f"mesh {name} has {len(data)} bytes", expected="an STL file: 84 bytes of header and facets")
    raise MeshError(
        f"mesh {name} claims {count} facets but has {len(data)} bytes",
        expected=f"{_HEADER_BYTES + count * _FACET.itemsize} bytes",
        hint="the file is truncated or not an STL file; fetch it again",
    )


def _read_ascii(data: bytes, name: str) -> Soup:
    if b"endsolid" not in data:
        raise MeshError(
            f"ASCII STL mesh {name} ends without 'endsolid'",
            expected="a complete file",
            hint="the file is truncated; fetch it again",
        )
    found = _VERTEX_LINE.findall(data)
    if len(found) % 3 or len(found) != 3 * data.count(b"endfacet"):
        raise MeshError(
            f"ASCII STL mesh {name} has {len(found)} vertex lines in {data.count(b'endfacet')} facets",
            expected="three 'vertex x y z' lines in every facet",
        )
    try:
        vertices = np.array(found, dtype=np.bytes_).astype(np.float64)
    except ValueError as error:
        raise MeshError(f"ASCII STL mesh {name}: {error}", expected="numbers after 'vertex'") from None
    return _soup(vertices.reshape(-1, 3))


def _soup(vertices: np.ndarray) -> Soup:
    return Soup(vertices, np.arange(len(vertices), dtype=np.int64).reshape(-1, 3), None)
