"""Triangle meshes of the lab's objects and furniture for rendering, with rounded edges."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import ConvexHull

from kinema4d_ros.core.transforms import make
from kinema4d_ros.physics import parts
from kinema4d_ros.physics.objects import LabObject, parts_of
from kinema4d_ros.robot.model import Geometry, TriangleMesh
from kinema4d_ros.robot.primitives import sphere_mesh

__all__ = ["box_geometry", "hull_mesh", "object_geometries", "rounded_box", "rounded_cylinder"]

EDGE_M = 0.0018
BEVELS = 3
SIDES = 72

RGB = tuple[float, float, float]


def object_geometries(thing: LabObject) -> list[Geometry]:
    """Make the object's geometries in its own frame: its collision parts with edges rounded by about `EDGE_M`.

    A mug is round where its collision shape has flat pieces; a "hull" keeps its sharp edges.
    """
    size = thing.size
    if thing.shape == "mug":
        body = _geometry("mesh", make(None, [parts.mug_axis(size), 0.0, 0.0]), cup(size[1] / 2, size[2]), thing.rgb)
        return [body, _geometry("mesh", np.eye(4), handle(parts.handle_path(size)), thing.rgb)]
    if thing.shape == "bottle":
        return [_geometry("mesh", np.eye(4), bottle(size[0] / 2, size[2]), thing.rgb)]
    if thing.shape == "taper":
        return [_geometry("mesh", np.eye(4), tapered_box(np.array(size), parts.TAPER_TOP), thing.rgb)]
    if thing.shape in ("hollow_box", "ell"):
        return [box_geometry(center, sides, thing.rgb) for center, sides in _overlapping(thing)]
    made = []
    for part in parts_of(thing):
        if part.vertices is not None:
            made.append(_geometry("mesh", part.object_T_part, hull_mesh(part.vertices), thing.rgb))
        elif part.kind == "sphere":
            made.append(_geometry("sphere", part.object_T_part, sphere_mesh(part.size[0] / 2), thing.rgb))
        elif part.kind == "cylinder":
            mesh = rounded_cylinder(part.size[0] / 2, part.size[2])
            made.append(_geometry("cylinder", part.object_T_part, mesh, thing.rgb))
        else:
            made.append(box_geometry(part.object_T_part[:3, 3], np.array(part.size), thing.rgb))
    return made


def _overlapping(thing: LabObject) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """List centres and full sizes of the object's boxes, each extended along x or y to the bounding box.

    The collision parts end where the next one begins; rounded edges there would show as grooves.
    """
    boxes = [(part.object_T_part[:3, 3].copy(), np.array(part.size)) for part in parts_of(thing)]
    for center, size in boxes:
        axis = int(np.argmax(size[:2]))
        if thing.shape == "ell" or size[1 - axis] <= parts.HOLLOW_WALL_M:
            size[axis], center[axis] = thing.size[axis], 0.0
        else:
            size[:2] += parts.HOLLOW_WALL_M  # the floor, into the middle of the walls
    return boxes


def box_geometry(center: NDArray[np.float64], size: NDArray[np.float64], rgb: RGB) -> Geometry:
    """Make a box of full sizes (3,) at a centre (3,), metres, link frame."""
    return _geometry("box", make(None, center), rounded_box(size), rgb)


def _geometry(kind: str, link_T_geometry: NDArray[np.float64], mesh: TriangleMesh, rgb: RGB) -> Geometry:
    return Geometry(kind=kind, link_T_geometry=link_T_geometry, mesh=mesh, rgba=(*rgb, 1.0))  # type: ignore[arg-type]


def rounded_box(size: NDArray[np.float64], edge_m: float = EDGE_M) -> TriangleMesh:
    """Make a closed box mesh of full sizes (3,) in metres with rounded edges; its flat faces are those of the box."""
    half = np.asarray(size, dtype=np.float64) / 2
    edge = min(edge_m, 0.4 * float(half.min()))
    inner = half - edge
    reach = np.tan(np.radians(45.0) * np.arange(1, BEVELS + 1) / BEVELS) * edge
    lines = [np.concatenate([-(i + reach)[::-1], [-i, i], i + reach]) for i in inner]
    n = len(lines[0])
    points: list[NDArray[np.float64]] = []
    faces: list[NDArray[np.int64]] = []
    a, b = (g.ravel() for g in np.meshgrid(np.arange(n - 1), np.arange(n - 1), indexing="ij"))
    corner = a * n + b
    quads = np.stack([corner, corner + n, corner + n + 1, corner + 1], axis=1)
    for axis in range(3):
        i, j = (axis + 1) % 3, (axis + 2) % 3
        u, v = (g.ravel() for g in np.meshgrid(lines[i], lines[j], indexing="ij"))
        for side in (-1.0, 1.0):
            p = np.zeros((n * n, 3))
            p[:, axis], p[:, i], p[:, j] = side * half[axis], u, v
            ordered = quads if side > 0 else quads[:, ::-1]
            faces.append(ordered[:, [0, 1, 2, 0, 2, 3]].reshape(-1, 3) + len(points) * n * n)
            points.append(p)
    cube = np.concatenate(points)
    core = np.clip(cube, -inner, inner)
    away = cube - core
    vertices = core + edge * away / np.linalg.norm(away, axis=1, keepdims=True)
    return _welded(vertices, np.concatenate(faces))


def tapered_box(size: NDArray[np.float64], top: float) -> TriangleMesh:
    """Make a closed box mesh of full sizes (3,) in metres whose top is smaller by the factor `top`, edges rounded."""
    box = rounded_box(size)
    shrink = 1.0 + (top - 1.0) * (box.vertices[:, 2] / size[2] + 0.5)
    return TriangleMesh(box.vertices * np.stack([shrink, shrink, np.ones_like(shrink)], 1), box.faces, closed=True)


def rounded_cylinder(radius: float, length: float, edge_m: float = EDGE_M) -> TriangleMesh:
    """Make a closed cylinder mesh along z, metres, with rounded rims."""
    edge = min(edge_m, 0.4 * radius, 0.2 * length)
    bend = np.radians(90.0) * np.arange(2 * BEVELS + 1) / (2 * BEVELS)
    rim_r, rim_z = radius - edge + edge * np.sin(bend), length / 2 - edge + edge * np.cos(bend)
    profile_r, profile_z = np.concatenate([rim_r, rim_r[::-1]]), np.concatenate([rim_z, -rim_z[::-1]])
    return _lathe(profile_r, profile_z, length / 2, -length / 2)


def cup(radius: float, height: float) -> TriangleMesh:
    """Make a closed mesh of a mug without its handle, axis z, centred, metres; the inner floor's corner is rounded."""
    wall = parts.MUG_WALL_M
    inner, top, floor = radius - wall, height / 2, wall - height / 2
    profile = np.array(
        [
            *_arc((inner - 2 * wall, floor), (inner, floor), (inner, floor + 2 * wall)),
            *_arc((inner, top - wall / 2), (inner, top), (radius - wall / 2, top)),
            *_arc((radius - wall / 2, top), (radius, top), (radius, top - wall / 2))[1:],
            *_arc((radius, EDGE_M - top), (radius, -top), (radius - EDGE_M, -top)),
        ]
    )
    return _lathe(profile[:, 0], profile[:, 1], floor, -top)


def bottle(radius: float, height: float) -> TriangleMesh:
    """Make a closed mesh of a bottle along z, centred, metres, with rounded rim, shoulder and foot."""
    neck, low = parts.BOTTLE_NECK * radius, -height / 2
    body, shoulder = low + parts.BOTTLE_BODY * height, low + parts.BOTTLE_SHOULDER * height
    bend = 0.3 * (shoulder - body)
    slope = np.array([radius - neck, body - shoulder])
    down, up = 0.3 * slope, -0.3 * slope
    profile = np.array(
        [
            *_arc((neck - EDGE_M, -low), (neck, -low), (neck, -low - EDGE_M)),
            *_arc((neck, shoulder + bend), (neck, shoulder), (neck + down[0], shoulder + down[1])),
            *_arc((radius + up[0], body + up[1]), (radius, body), (radius, body - bend)),
            *_arc((radius, low + EDGE_M), (radius, low), (radius - EDGE_M, low)),
        ]
    )
    return _lathe(profile[:, 0], profile[:, 1], -low, low)


def _arc(start: ArrayLike, corner: ArrayLike, end: ArrayLike) -> NDArray[np.float64]:
    """Return points (K, D) of a curve from start (D,) to end (D,) that is tangent to both sides of a corner (D,)."""
    a, b, c = (np.asarray(p, dtype=np.float64) for p in (start, corner, end))
    t = np.arange(2 * BEVELS + 1)[:, None] / (2 * BEVELS)
    return np.asarray((1 - t) ** 2 * a + 2 * t * (1 - t) * b + t**2 * c)


def handle(path: NDArray[np.float64]) -> TriangleMesh:
    """Make a closed mesh of a mug's handle along a path (N, 3) in the plane y = 0, metres."""
    wide, thick = parts.HANDLE_M
    middles = (path[:-1] + path[1:]) / 2
    curves = [_arc(middles[i], path[i + 1], middles[i + 1])[1:] for i in range(len(path) - 2)]
    points = np.concatenate([path[:1], middles[:1], *curves, path[-1:]])
    along = np.gradient(points, axis=0)
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    across = np.cross(along, [0.0, 1.0, 0.0])
    turn = 2 * np.pi * np.arange(SIDES // 3) / (SIDES // 3)
    # A rounded rectangle: between an ellipse and its bounding box.
    c, s = (np.sign(w) * np.abs(w) ** 0.6 for w in (np.cos(turn), np.sin(turn)))
    rings = points[:, None] + thick / 2 * c[:, None] * across[:, None] + wide / 2 * s[:, None] * [0.0, 1.0, 0.0]
    return _tube(rings, points[0], points[-1])


def hull_mesh(vertices: NDArray[np.float64]) -> TriangleMesh:
    """Make the closed mesh of the convex hull of points (P, 3)."""
    hull = ConvexHull(vertices)
    faces = hull.simplices.astype(np.int64)
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    inward = np.einsum("ij,ij->i", np.cross(b - a, c - a), hull.equations[:, :3]) < 0
    faces[inward] = faces[inward][:, ::-1]
    return _welded(vertices, faces)


def _lathe(
    profile_r: NDArray[np.float64], profile_z: NDArray[np.float64], first_z: float, last_z: float
) -> TriangleMesh:
    """Revolve a profile of radii and heights (K,) about z; discs at its first and last height close it.

    Faces point outwards if the object is below the first disc and above the last one.
    """
    turn = 2 * np.pi * np.arange(SIDES) / SIDES
    rings = np.stack(
        [np.outer(profile_r, np.cos(turn)), np.outer(profile_r, np.sin(turn)), np.tile(profile_z[:, None], SIDES)], -1
    )
    return _tube(rings, np.array([0.0, 0.0, first_z]), np.array([0.0, 0.0, last_z]))


def _tube(rings: NDArray[np.float64], first: NDArray[np.float64], last: NDArray[np.float64]) -> TriangleMesh:
    """Join rings (K, N, 3) into a closed mesh with fans around a first and a last point (3,)."""
    count, sides = rings.shape[:2]
    vertices = np.concatenate([rings.reshape(-1, 3), [first, last]])
    k, i = (g.ravel() for g in np.meshgrid(np.arange(count - 1), np.arange(sides), indexing="ij"))
    j = (i + 1) % sides
    a, b, c, d = k * sides + i, (k + 1) * sides + i, (k + 1) * sides + j, k * sides + j
    side = np.arange(sides)
    following, top = (side + 1) % sides, count * sides
    end = (count - 1) * sides
    faces = np.concatenate(
        [
            np.stack([a, b, c], 1),
            np.stack([a, c, d], 1),
            np.stack([side, following, np.full(sides, top)], 1),
            np.stack([end + following, end + side, np.full(sides, top + 1)], 1),
        ]
    )
    return _welded(vertices, faces)


def _welded(vertices: NDArray[np.float64], faces: NDArray[np.int64]) -> TriangleMesh:
    _, first, inverse = np.unique(np.round(vertices, 9), axis=0, return_index=True, return_inverse=True)
    corners = inverse.reshape(-1)[faces].astype(np.int32)
    a, b, c = corners.T
    solid = (a != b) & (b != c) & (c != a)
    return TriangleMesh(vertices=vertices[first], faces=corners[solid], closed=True)
