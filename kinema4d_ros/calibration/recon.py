"""A reconstructed mesh laid onto the robot's description: picked pairs first, then iterative closest points.

picked pairs ─> rotation, shift and size in closed form ─> nearest surface, robust, repeated ─> `recon_T_base`
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from kinema4d_ros.calibration.board_pose import skew
from kinema4d_ros.calibration.pose_estimate import changed
from kinema4d_ros.calibration.quality import Finding, Quality, finding, sorted_findings
from kinema4d_ros.errors import CalibrationError, ErrorCode, FileFormatError, MeshError
from kinema4d_ros.files import reading
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.robot.meshes import load_mesh
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.transforms import apply, make

__all__ = [
    "Reconstruction",
    "Surface",
    "align_pairs",
    "align_reconstruction",
    "load_surface",
    "robot_surface",
    "sample_surface",
]

Array = NDArray[np.float64]

_STEPS = 60
_POINTS = 20_000
GOOD_MM, WORST_MM = 3.0, 15.0


@dataclass(frozen=True, eq=False)
class Surface:
    """Points on a surface.

    Attributes:
        points: (N, 3) float64.
        normals: (N, 3) float64 unit vectors; their sign is not used.
    """

    points: Array
    normals: Array


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Where the reconstruction is: `p_base = base_T_recon (scale * p_recon)`.

    Attributes:
        base_T_recon: (4, 4) float64, rigid, metres.
        scale: metres for one unit of the reconstruction; 1 for a rigid alignment.
        quality: `mm` is the root mean square distance of the reconstruction's points that fit from the robot.
        pairs_mm: root mean square distance of the picked pairs, before the refinement.
        distance_m: (N,) of every point used, after it.
        share: of the points nearer than 5 mm.
    """

    base_T_recon: Array
    scale: float
    quality: Quality
    pairs_mm: float
    distance_m: Array
    share: float

    @property
    def recon_T_base(self) -> Array:
        """(4, 4) from metres in the base frame to the reconstruction's coordinates; not rigid if `scale` is not 1."""
        forward = self.base_T_recon @ np.diag([self.scale, self.scale, self.scale, 1.0])
        return np.asarray(np.linalg.inv(forward))


def align_pairs(p_recon: ArrayLike, p_base: ArrayLike, *, similarity: bool = False) -> tuple[Array, float]:
    """`base_T_recon` (4, 4) and scale that lay points (N, 3) onto their partners with the least squared distance.

    Needs three pairs that are not on a line. With `similarity` the scale is free, otherwise it is 1.
    """
    a, b = (np.asarray(p, dtype=np.float64) for p in (p_recon, p_base))
    if a.ndim != 2 or a.shape != b.shape or a.shape[1] != 3 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise CalibrationError(f"pairs of shapes {a.shape} and {b.shape}", expected="(N, 3) finite points each")
    if len(a) < 3:
        raise CalibrationError(f"{len(a)} picked pairs (too_few_poses)", expected="at least 3, better 6")
    ca, cb = a.mean(axis=0), b.mean(axis=0)
    da, db = a - ca, b - cb
    for what, d in (("reconstruction", da), ("robot", db)):
        strengths = np.linalg.svd(d, compute_uv=False)
        if strengths[1] < 0.02 * max(strengths[0], 1e-12):
            raise CalibrationError(
                f"the points picked on the {what} lie on a line (parallel_axes)", expected="points that span a plane"
            )
    U, s, Vt = np.linalg.svd(db.T @ da)
    sign = np.array([1.0, 1.0, np.sign(np.linalg.det(U @ Vt))])
    R = U @ np.diag(sign) @ Vt
    scale = float((s * sign).sum() / (da**2).sum()) if similarity else 1.0
    return make(R, cb - scale * R @ ca), scale


def sample_surface(vertices: ArrayLike, faces: ArrayLike, count: int = _POINTS, seed: int = 0) -> Surface:
    """Points spread evenly over triangles, with the triangles' normals."""
    v, f = np.asarray(vertices, dtype=np.float64), np.asarray(faces, dtype=np.int64)
    a, b, c = v[f[:, 0]], v[f[:, 1]], v[f[:, 2]]
    normal = np.cross(b - a, c - a)
    area = np.linalg.norm(normal, axis=1)
    if not area.sum() > 0:
        raise CalibrationError("the surface has no area", expected="triangles")
    rng = np.random.default_rng(seed)
    pick = rng.choice(len(f), count, p=area / area.sum())
    u = np.sqrt(rng.random((count, 1)))
    w = rng.random((count, 1))
    points = (1 - u) * a[pick] + u * (1 - w) * b[pick] + u * w * c[pick]
    return Surface(points, normal[pick] / area[pick, None])


def robot_surface(robot: Robot, q: ArrayLike, count: int = 4 * _POINTS, seed: int = 0) -> Surface:
    """Points on the robot's visual shapes at one configuration (J,), metres, base frame."""
    poses = forward_all(robot, np.atleast_2d(np.asarray(q, dtype=np.float64)))[0]
    vertices, faces, start = [], [], 0
    for link, pose in zip(robot.links, poses, strict=True):
        for shape in link.visuals:
            vertices.append(apply(pose @ shape.link_T_geometry, shape.mesh.vertices))
            faces.append(shape.mesh.faces + start)
            start += len(shape.mesh.vertices)
    if not vertices:
        raise CalibrationError(f"robot '{robot.name}' has no visual shapes", expected="a URDF with <visual> shapes")
    return sample_surface(np.concatenate(vertices), np.concatenate(faces), count, seed)


def load_surface(path: str | Path, count: int = _POINTS) -> Surface:
    """Points on a mesh file (.stl, .obj, .dae, .ply, .glb), in its own units."""
    file = Path(path)
    if file.suffix.lower() not in (".ply", ".glb"):
        mesh = load_mesh(file)
        return sample_surface(mesh.vertices, mesh.faces, count)
    if not file.is_file():
        raise FileFormatError(f"{file} does not exist", expected="a mesh file", code=ErrorCode.FILE_MISSING)
    # Here, because that package needs this one; it opens no file but the one it is given.
    from kinema4d_ros.assets.mesh_files import read_mesh_file

    try:
        found = read_mesh_file(file)
    except MeshError as error:
        raise FileFormatError(error.what, expected=error.expected, hint=error.hint) from None
    with reading(file, "a mesh with an area", error=CalibrationError):
        return sample_surface(found.vertices, found.faces, count)


def align_reconstruction(
    surface: Surface,
    robot: Robot,
    q: ArrayLike,
    p_recon: ArrayLike,
    p_base: ArrayLike,
    *,
    similarity: bool = False,
) -> Reconstruction:
    """Lay a reconstruction onto the robot.

    Args:
        surface: of the reconstruction, in its own units.
        robot, q: what was reconstructed, and its joint positions (J,) then.
        p_recon, p_base: (N, 3) picked pairs: points of the reconstruction and the same points on the robot, metres.
        similarity: the reconstruction's unit is unknown.
    """
    pose, scale = align_pairs(p_recon, p_base, similarity=similarity)
    pairs = np.linalg.norm(apply(pose, scale * np.asarray(p_recon)) - np.asarray(p_base), axis=1)
    target = robot_surface(robot, q)
    pose, scale, distance, kept = _closest_points(surface, target, pose, scale, similarity)
    rms = 1e3 * float(np.sqrt((distance[kept] ** 2).mean()))
    share = float((distance < 0.005).mean())
    mirrored = _mirrored(np.asarray(p_recon, np.float64), np.asarray(p_base, np.float64), similarity)
    quality = Quality(mm=rms, poses=len(pairs), findings=sorted_findings(_findings(rms, share, len(pairs), mirrored)))
    return Reconstruction(pose, scale, quality, 1e3 * float(np.sqrt((pairs**2).mean())), distance, share)


def _closest_points(
    surface: Surface, target: Surface, pose: Array, scale: float, similarity: bool
) -> tuple[Array, float, Array, NDArray[np.bool_]]:
    """Point-to-plane, with a reach that shrinks: pose, scale, distance (N,) and which points fit."""
    tree = cKDTree(target.points)
    reach = 0.05
    for step in range(_STEPS):
        # While the surfaces are far apart a few points say as much as all.
        few = surface.points[::6] if step < 12 and len(surface.points) > 3000 else surface.points
        p = apply(pose, scale * few)
        distance, nearest = tree.query(p, distance_upper_bound=reach)
        hit = np.isfinite(distance)
        if hit.sum() < 50:
            break
        n = target.normals[nearest[hit]]
        r = ((p[hit] - target.points[nearest[hit]]) * n).sum(axis=1)
        # Shift in base axes, turn about the reconstruction's, size: the last two move a point by its lever arm.
        lever = p[hit] - pose[:3, 3]
        local = lever @ pose[:3, :3]
        turn = -np.einsum("nk,nkj->nj", n @ pose[:3, :3], skew(local))
        columns = [n, turn] + ([(n * lever).sum(axis=1, keepdims=True)] if similarity else [])
        J = np.concatenate(columns, axis=1)
        sigma = max(1.48 * float(np.median(np.abs(r))), 2e-4)
        w = 1 / (1 + (r / (2 * sigma)) ** 2)
        change = -np.linalg.solve(J.T @ (w[:, None] * J) + 1e-9 * np.eye(J.shape[1]), J.T @ (w * r))
        pose = changed(pose, change[:6])
        if similarity:
            scale *= 1 + float(np.clip(change[6], -0.1, 0.1))
        reach = max(0.7 * reach, 0.01)
        if np.abs(change).max() < 1e-6 and step > 14:
            break
    p = apply(pose, scale * surface.points)
    distance, nearest = tree.query(p)
    across = np.abs(((p - target.points[nearest]) * target.normals[nearest]).sum(axis=1))
    # Beyond a centimetre the nearest sample is not the same place any more, and its plane means nothing.
    result = np.where(distance < 0.01, across, distance)
    return pose, scale, result, result < 0.01


def _mirrored(a: Array, b: Array, similarity: bool) -> bool:
    """The pairs fit much better after a reflection."""
    if len(a) < 4:
        return False
    rest = []
    for points in (a, a * (-1, 1, 1)):
        pose, scale = align_pairs(points, b, similarity=similarity)
        rest.append(float(np.sqrt(((apply(pose, scale * points) - b) ** 2).sum(axis=1).mean())))
    return rest[1] < 0.3 * rest[0] and rest[0] > 0.01


def _findings(rms_mm: float, share: float, pairs: int, mirrored: bool) -> list[Finding]:
    found = []
    if mirrored:
        found.append(finding("mirrored_model", "the picked pairs fit a mirror image", "error"))
    if rms_mm > GOOD_MM or not np.isfinite(rms_mm):
        bad = not rms_mm <= WORST_MM
        found.append(finding("poor_fit", f"distance {rms_mm:.1f} mm", "error" if bad else "warning"))
    if share < 0.6:
        text = f"{share:.0%} of the reconstruction is within 5 mm of the robot"
        found.append(finding("poor_overlap", text, "error" if share < 0.25 else "warning"))
    if pairs < 4:
        found.append(finding("too_few_poses", f"{pairs} pairs: a wrong one would not show"))
    return found
