"""Mesh files as clean triangles in metres: readers for STL, OBJ and COLLADA, with a cache."""

from __future__ import annotations

import io
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import collada
import collada.common
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components

from kinema4d_ros.core.errors import ErrorCode, MeshError
from kinema4d_ros.io.files import read_bytes, reading, what_it_is
from kinema4d_ros.robot.model import TriangleMesh
from kinema4d_ros.robot.xml_screen import screen_xml

__all__ = ["MAX_MESH_BYTES", "Soup", "clean_mesh", "load_mesh", "read_collada", "read_obj", "read_stl", "weld"]

# Mesh cleanup: welding, outward winding and an exact test for closed bodies.

FLAT_VOLUME = 1e-12
"""A body whose volume is below this times its cubed diagonal has no interior and counts as open."""


class Soup(NamedTuple):
    """Triangles as read from a file.

    Attributes:
        vertices: (V, 3) float64, not welded.
        faces: (F, 3) int64 indices.
        face_rgb: (F, 3) uint8, or None if the file has no colours.
    """

    vertices: NDArray[np.float64]
    faces: NDArray[np.int64]
    face_rgb: NDArray[np.uint8] | None


def weld(
    vertices: NDArray[np.float64], faces: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]:
    """Merge vertices with equal coordinates; drop faces that lose a corner.

    Only exactly equal vertices are merged: a tolerance would close real gaps. Faces with three different
    but collinear corners are kept: they are invisible, but without them the mesh would be open.

    Returns:
        (V, 3) used vertices, (F, 3) faces, (N,) which of the given faces were kept.
    """
    points = vertices + 0.0  # turns -0.0 into 0.0, so that they are merged
    order = np.lexsort(points.T)
    ordered = points[order]
    new = np.ones(len(points), dtype=bool)
    new[1:] = np.any(ordered[1:] != ordered[:-1], axis=1)
    label = np.empty(len(points), dtype=np.int64)
    label[order] = np.cumsum(new) - 1
    welded = label[faces]
    a, b, c = welded.T
    kept = (a != b) & (b != c) & (c != a)
    welded = welded[kept]
    used, compact = np.unique(welded, return_inverse=True)
    return ordered[new][used], compact.reshape(-1, 3), kept


def clean_mesh(soup: Soup) -> TriangleMesh:
    """Weld triangles and wind every closed body outwards.

    A closed body that is inside out, including a cavity, is flipped: the renderer skips back faces, and a
    surface wound inwards would be invisible. Open bodies keep their winding. `closed` is True only if
    every body is closed.
    """
    points, triangles, kept = weld(soup.vertices, soup.faces)
    face_rgb = None if soup.face_rgb is None else soup.face_rgb[kept]
    triangles, closed = _wind_outwards(points, triangles)
    return TriangleMesh(vertices=points, faces=triangles.astype(np.int32), face_rgb=face_rgb, closed=closed)


def _wind_outwards(vertices: NDArray[np.float64], faces: NDArray[np.int64]) -> tuple[NDArray[np.int64], bool]:
    count = len(faces)
    if count == 0:
        return faces, False
    tail = faces.ravel()
    head = np.roll(faces, -1, axis=1).ravel()
    owner = np.repeat(np.arange(count), 3)
    key = np.minimum(tail, head) * len(vertices) + np.maximum(tail, head)
    order = np.argsort(key, kind="stable")
    sorted_key = key[order]
    starts = np.flatnonzero(np.r_[True, sorted_key[1:] != sorted_key[:-1]])
    sizes = np.diff(np.r_[starts, len(sorted_key)])

    pairs = starts[sizes == 2]
    first, second = order[pairs], order[pairs + 1]
    left, right = owner[first], owner[second]
    disagree = tail[first] == tail[second]
    body_count, body = connected_components(
        coo_matrix((np.ones(len(left)), (left, right)), shape=(count, count)), directed=False
    )
    closed = np.ones(body_count, dtype=bool)
    irregular = np.repeat(sizes != 2, sizes)
    closed[body[owner[order[irregular]]]] = False

    flip = np.zeros(count, dtype=bool)
    if np.any(disagree):
        flip = _flips(left, right, disagree, body)
        torn = (flip[left] ^ flip[right]) != disagree
        closed[body[left[torn]]] = False
        flip &= closed[body]
        faces = np.where(flip[:, None], faces[:, ::-1], faces)

    corners = vertices[faces]
    volume = np.zeros(body_count)
    low = np.full((body_count, 3), np.inf)
    high = np.full((body_count, 3), -np.inf)
    np.minimum.at(low, body, corners.min(axis=1))
    np.maximum.at(high, body, corners.max(axis=1))
    centre = (low + high) / 2.0
    relative = corners - centre[body][:, None]
    six_volumes = np.einsum("ij,ij->i", relative[:, 0], np.cross(relative[:, 1], relative[:, 2]))
    np.add.at(volume, body, six_volumes / 6.0)
    flat = FLAT_VOLUME * np.linalg.norm(high - low, axis=1) ** 3
    closed &= np.abs(volume) > flat
    inside_out = closed & (volume < 0)
    faces = np.where(inside_out[body][:, None], faces[:, ::-1], faces)
    return faces, bool(np.all(closed))


def _flips(
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    disagree: NDArray[np.bool_],
    body: NDArray[np.int32],
) -> NDArray[np.bool_]:
    """Return (F,) which faces to reverse so that neighbours agree, starting from one face of each body."""
    count = len(body)
    links = coo_matrix((np.ones(len(left)), (left, right)), shape=(count, count)).tocsr()
    turned = {(int(a), int(b)) for a, b in zip(left[disagree], right[disagree], strict=True)}
    turned |= {(b, a) for a, b in turned}
    flip = np.zeros(count, dtype=bool)
    for seed in np.unique(body[left[disagree]], return_index=True)[1]:
        order, before = breadth_first_order(links, left[disagree][seed], directed=False)
        for face in order[1:]:
            flip[face] = flip[before[face]] ^ ((int(before[face]), int(face)) in turned)
    return flip


# Wavefront OBJ: raw triangles with the diffuse colours of the material library.

Colors = dict[str, tuple[float, float, float]]

_MAX_LIBRARIES = 64
_MAX_LIBRARY_BYTES = 16 * 2**20


def read_obj(data: bytes, name: str, folder: Path, root: Path) -> Soup:
    """Read vertices and faces in file units; polygons are triangulated as fans, so they must be convex.

    Args:
        data: the file's contents.
        name: name of the file in errors.
        folder: search folder for `mtllib` names.
        root: material libraries outside this folder are rejected. Textures are never opened.
    """
    vertices: list[list[float]] = []
    faces: list[tuple[int, int, int]] = []
    face_material: list[str] = []
    colors: Colors = {}
    libraries: set[str] = set()
    material = ""
    for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1):
        keyword, _, rest = line.strip().partition(" ")
        try:
            if keyword == "v":
                x, y, z = rest.split()[:3]
                vertices.append([float(x), float(y), float(z)])
            elif keyword == "f":
                corners = [_index(word, len(vertices)) for word in rest.split()]
                if len(corners) < 3:
                    raise ValueError(f"a face with {len(corners)} corners")
                for i in range(1, len(corners) - 1):
                    faces.append((corners[0], corners[i], corners[i + 1]))
                    face_material.append(material)
            elif keyword == "usemtl":
                material = rest.strip()
            elif keyword == "mtllib" and rest.strip() not in libraries:
                # Read each library once, even if a file names it a million times.
                libraries.add(rest.strip())
                if len(libraries) > _MAX_LIBRARIES:
                    raise ValueError(f"more than {_MAX_LIBRARIES} material libraries")
                colors.update(_read_colors(rest.strip(), name, folder, root))
        except (ValueError, IndexError) as error:
            raise MeshError(
                f"mesh {name}, line {number}: '{line.strip()[:60]}': {error}",
                expected="'v x y z' with numbers and 'f i j k' with indices of vertices above it",
            ) from None
    rgb: NDArray[np.uint8] | None = None
    if any(m in colors for m in set(face_material)):
        table = np.array([colors.get(m, _UNCOLOURED) for m in face_material])
        rgb = np.round(255.0 * np.clip(table, 0.0, 1.0)).astype(np.uint8)
    return Soup(
        np.array(vertices, dtype=np.float64).reshape(-1, 3),
        np.array(faces, dtype=np.int64).reshape(-1, 3),
        rgb,
    )


def _index(word: str, count: int) -> int:
    index = int(word.split("/", 1)[0])
    index = index - 1 if index > 0 else count + index
    if not 0 <= index < count:
        raise ValueError(f"vertex {word} of {count}")
    return index


def _read_colors(library: str, name: str, folder: Path, root: Path) -> Colors:
    path = (folder / library).resolve()
    if not path.is_relative_to(root.resolve()):
        raise MeshError(
            f"mesh {name} uses the material library '{library}', which resolves to {path}",
            expected=f"a file inside {root}",
            hint="keep the material library beside the mesh",
            code=ErrorCode.MESH_UNSAFE_PATH,
        )
    if not path.is_file():
        return {}
    colors: Colors = {}
    current = ""
    for line in read_bytes(path, _MAX_LIBRARY_BYTES).decode("utf-8", errors="replace").splitlines():
        keyword, _, rest = line.strip().partition(" ")
        if keyword == "newmtl":
            current = rest.strip()
        elif keyword == "Kd":
            r, g, b = (float(word) for word in rest.split()[:3])
            colors[current] = (r, g, b)
    return colors


# STL, binary and ASCII: raw triangles.

_HEADER_BYTES = 84
_FACET = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
# Limit the length of a number: the longest one sets the width of the whole text array below.
_VERTEX_LINE = re.compile(rb"^[ \t]*vertex[ \t]+(\S{1,40})[ \t]+(\S{1,40})[ \t]+(\S{1,40})[ \t]*\r?$", re.MULTILINE)


def read_stl(data: bytes, name: str) -> Soup:
    """Read three vertices per facet, file units; normals and attributes are ignored.

    The facet count is compared with the file size first, so that a broken header allocates no memory.
    """
    count = int.from_bytes(data[80:84], "little") if len(data) >= _HEADER_BYTES else -1
    if count >= 0 and len(data) == _HEADER_BYTES + count * _FACET.itemsize:
        facets = np.frombuffer(data, dtype=_FACET, offset=_HEADER_BYTES)
        return _soup(facets["corners"].astype(np.float64).reshape(-1, 3))
    # Binary headers may also start with "solid": only a file that also contains "facet" is text.
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


MAX_MESH_BYTES = 512 * 2**20
"""Maximum size of a mesh file; larger ones are not read."""

Scale = tuple[float, float, float]


def load_mesh(path: str | Path, scale: Scale = (1.0, 1.0, 1.0), root: str | Path | None = None) -> TriangleMesh:
    """Load the triangles of a mesh file, welded, outward-wound, scaled.

    Arrays are read-only: all callers share the cached mesh until the file changes.

    Args:
        path: a .stl, .obj or .dae file.
        scale: factors along x, y, z; a negative product mirrors the mesh, and the winding is reversed.
        root: the folder that must contain the material libraries; by default the file's own.
    """
    file = Path(path)
    if not np.all(np.isfinite(scale)) or 0.0 in scale:
        raise MeshError(f"mesh {file.name} has scale {scale}", expected="three finite numbers that are not 0")
    try:
        status = file.stat()
    except OSError as error:
        raise MeshError(
            f"mesh file {file} cannot be opened: {error.strerror}",
            expected="a readable file",
            code=ErrorCode.MESH_MISSING,
        ) from None
    if what_it_is(status):
        raise MeshError(f"mesh {file} is {what_it_is(status)}", expected="a file")
    if status.st_size > MAX_MESH_BYTES:
        raise MeshError(f"mesh {file} has {status.st_size} bytes", expected=f"at most {MAX_MESH_BYTES}")
    folder = file.parent if root is None else Path(root)
    with reading(file, "a mesh file", error=MeshError):
        return _load(file, status.st_mtime_ns, status.st_size, scale, folder)


@lru_cache(maxsize=256)
def _load(file: Path, mtime_ns: int, size: int, scale: Scale, root: Path) -> TriangleMesh:
    soup = _read(file, root)
    if not len(soup.faces):
        raise MeshError(f"mesh {file} has no triangles", expected="at least one")
    if not np.all(np.isfinite(soup.vertices)):
        raise MeshError(f"mesh {file} has NaN or infinite vertices", expected="finite coordinates")
    scaled = soup.vertices * np.asarray(scale)
    if not np.all(np.isfinite(scaled)):
        raise MeshError(f"mesh {file} overflows with scale {scale}", expected="metres")
    faces = soup.faces[:, ::-1] if np.prod(np.sign(scale)) < 0 else soup.faces
    mesh = clean_mesh(Soup(scaled, faces, soup.face_rgb))
    if not len(mesh.faces):
        raise MeshError(f"mesh {file} has only degenerate triangles", expected="triangles with an area")
    for array in (mesh.vertices, mesh.faces, mesh.face_rgb):
        if array is not None:
            array.flags.writeable = False
    return mesh


def _read(file: Path, root: Path) -> Soup:
    data = file.read_bytes()
    suffix = file.suffix.lower()
    if suffix == ".stl":
        return read_stl(data, str(file))
    if suffix == ".obj":
        return read_obj(data, str(file), file.parent, root)
    if suffix == ".dae":
        # Imported here: importing pycollada takes longer than loading a whole robot of STL files.
        from kinema4d_ros.robot.meshes import read_collada

        return read_collada(data, str(file))
    raise MeshError(
        f"mesh {file} has the unknown format '{suffix}'",
        expected=".stl, .obj or .dae",
        hint="convert it, for example with MeshLab or Blender",
    )


# COLLADA (.dae): raw triangles in metres, z up, with the diffuse colours of the materials.

_UNCOLOURED = (0.5, 0.5, 0.5)

# The standard's table of right, up and inward: X_UP -y, x, z; Y_UP x, y, z; Z_UP x, z, -y.
_Z_UP_R_FILE = {
    "X_UP": np.array([[0.0, -1.0, 0.0], [0.0, 0.0, -1.0], [1.0, 0.0, 0.0]]),
    "Y_UP": np.array([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]]),
    "Z_UP": np.eye(3),
}


def read_collada(data: bytes, name: str) -> Soup:
    """Read all triangles of the scene, placed by its node transforms; metres, z up.

    The file's `unit` and `up_axis` are applied. Textures are never opened: a textured surface
    gets the neutral grey of a surface without colour. Broken references are errors, because their
    geometry would be missing.
    """
    screen_xml(data, f"mesh {name}", malformed=MeshError)
    try:
        document = collada.Collada(
            io.BytesIO(data), aux_file_loader=_no_other_files, ignore=[collada.common.DaeUnsupportedError]
        )
        parts = list(_triangles(document))
    except Exception as error:  # pycollada raises KeyError, TypeError, DaeError and others
        raise MeshError(
            f"mesh {name} cannot be read as COLLADA: {type(error).__name__}: {error}",
            expected="a COLLADA 1.4 document with triangle geometry",
        ) from error
    if not parts:
        raise MeshError(f"mesh {name} has no triangles in its scene", expected="a scene that shows geometry")
    vertices = np.concatenate([corners.reshape(-1, 3) for corners, _ in parts])
    asset = document.assetInfo
    unit_m = 1.0 if asset is None or asset.unitmeter is None else float(asset.unitmeter)
    up_axis = "Y_UP" if asset is None or asset.upaxis is None else str(asset.upaxis)
    if not np.isfinite(unit_m) or unit_m <= 0 or up_axis not in _Z_UP_R_FILE:
        raise MeshError(
            f"mesh {name} has unit {unit_m} m and up axis {up_axis}",
            expected="a positive unit and X_UP, Y_UP or Z_UP",
        )
    rgb: NDArray[np.uint8] | None = None
    if any(color is not None for _, color in parts):
        table = [np.tile(_UNCOLOURED if color is None else color, (len(corners), 1)) for corners, color in parts]
        rgb = np.round(255.0 * np.clip(np.concatenate(table), 0.0, 1.0)).astype(np.uint8)
    placed = unit_m * vertices @ _Z_UP_R_FILE[up_axis].T
    return Soup(placed, np.arange(len(placed), dtype=np.int64).reshape(-1, 3), rgb)


def _triangles(document: Any) -> Any:
    """Yield pairs of (F, 3, 3) corners in file units and a colour or None, one per primitive."""
    if document.scene is None:
        return
    for geometry in document.scene.objects("geometry"):
        mirrored = np.linalg.det(np.asarray(geometry.matrix, dtype=np.float64)[:3, :3]) < 0
        for primitive in geometry.primitives():
            triangles = primitive.triangleset() if hasattr(primitive, "triangleset") else primitive
            if not hasattr(triangles, "vertex_index") or triangles.vertex_index is None:
                continue
            index = np.asarray(triangles.vertex_index)
            if index.ndim != 2 or index.shape[1] != 3 or not len(index):
                continue  # lines
            corners = np.asarray(triangles.vertex, dtype=np.float64)[index]
            yield (corners[:, ::-1] if mirrored else corners), _color(triangles.material)


def _color(material: Any) -> tuple[float, float, float] | None:
    diffuse = getattr(getattr(material, "effect", None), "diffuse", None)
    if isinstance(diffuse, tuple) and len(diffuse) >= 3:
        return float(diffuse[0]), float(diffuse[1]), float(diffuse[2])
    return None


def _no_other_files(name: str) -> bytes:
    raise MeshError(f"a COLLADA file refers to another file, '{name}'", expected="a self-contained file")
