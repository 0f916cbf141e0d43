"""Mesh reconstruction back-ends: the protocol, the built-in visual hull, Open3D's fusion of depth images, and an
external command. Open3D also reduces the number of triangles.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.acquisition.drawing import coloured
from kinema4d_ros.acquisition.hull import ColouredMesh, visual_hull
from kinema4d_ros.acquisition.mesh_files import MESH_SUFFIXES, read_mesh_file
from kinema4d_ros.acquisition.views import View
from kinema4d_ros.calibration.surfaces import load_open3d
from kinema4d_ros.core.errors import AssetError, ErrorCode, MeshError
from kinema4d_ros.core.transforms import apply, invert
from kinema4d_ros.io.images import write_image
from kinema4d_ros.runtime.child import Child, how_it_ended

__all__ = [
    "MESHERS",
    "ExternalCommand",
    "FusionBackend",
    "HullBackend",
    "MeshBackend",
    "Shot",
    "fuse_depth",
    "measured_pixels",
    "simplified",
]

MESHERS = ("hull", "open3d")
"""Built-in back-ends: the visual hull, refined by depth; the measured surfaces alone, fused by Open3D."""

Progress = Callable[[int, int], None]
Array = NDArray[np.float64]

_LAST_LINES = 12


class MeshBackend(Protocol):
    """Back-end that reconstructs a mesh from views of one joint configuration."""

    @property
    def metric(self) -> bool:
        """True if the mesh is in the world frame of the views; otherwise it has its own frame and unit."""

    def reconstruct(self, views: Sequence[View], progress: Progress) -> ColouredMesh:
        """Reconstruct a mesh with colours; raise an error if that fails."""


@dataclass(frozen=True, eq=False)
class HullBackend:
    """Visual hull, refined by depth where available; needs cameras, no weights.

    Attributes:
        voxel: side of a voxel, world units.
        misses: number of views that may disagree about a point.
        floor: (4,) plane n, d that the robot stands on: only n p + d > 0 is kept; None = no floor.
        metric: the mesh is in the world frame of the views.
    """

    voxel: float = 0.002
    misses: int = 0
    floor: Array | None = None
    metric: bool = True

    def reconstruct(self, views: Sequence[View], progress: Progress) -> ColouredMesh:
        """Carve the hull, then colour it from the images."""
        mesh = visual_hull(views, self.voxel, misses=self.misses, floor=self.floor)
        return coloured(mesh, views, slack=2 * self.voxel, progress=progress)


_TRUNCATION = 4.0
"""Truncation distance of fused depth, voxels."""

_LEAST_AREA = 0.02
"""Fused pieces with a smaller share of the largest piece's area are dropped."""

Shot = tuple[View, NDArray[np.bool_], Array]
"""View with depth, its pixels (H, W) to fuse, and the pose (4, 4) of the mesh's frame in the world at that time."""


def fuse_depth(shots: Iterable[Shot], voxel: float) -> ColouredMesh:
    """Fuse depth images with Open3D (truncated signed distances, marching cubes); no colours.

    Only measured surfaces appear, so the mesh is open. It is empty if nothing was measured.

    Args:
        shots: what to fuse; the world's unit is the metre.
        voxel: side of a voxel, metres.
    """
    o3d = load_open3d("--mesher open3d", "--mesher hull")
    one = o3d.core.float32
    grid = o3d.t.geometry.VoxelBlockGrid(("tsdf", "weight"), (one, one), ((1,), (1,)), voxel, 16, 1000)
    used = False
    for view, pixels, world_T_frame in shots:
        if view.depth_m is None or not pixels.any():
            continue
        used = True
        metres = np.where(pixels, view.depth_m, 0.0).astype(np.float32)
        camera_T_frame = view.camera.camera_T_base @ world_T_frame
        # Blocks around every measured point: from an image Open3D takes only every fourth row and column.
        row, column = np.nonzero(pixels)
        at = np.stack([column, row], axis=1) + 0.5
        p = apply(invert(camera_T_frame), view.camera.unproject(at, metres[row, column].astype(np.float64)))
        cloud = o3d.t.geometry.PointCloud(o3d.core.Tensor(p.astype(np.float32)))
        blocks = grid.compute_unique_block_coordinates(cloud, _TRUNCATION)
        image, K = o3d.t.geometry.Image(o3d.core.Tensor(metres)), o3d.core.Tensor(view.camera.K_opencv)
        farthest = float(metres.max()) + 1.0
        grid.integrate(blocks, image, K, o3d.core.Tensor(camera_T_frame), 1.0, farthest, _TRUNCATION)
    if not used:
        return ColouredMesh(np.zeros((0, 3)), np.zeros((0, 3), np.int64))
    return _large_pieces(grid.extract_triangle_mesh(1.0).to_legacy())


def _large_pieces(mesh: Any) -> ColouredMesh:
    if len(mesh.triangles):
        piece, _, area = (np.asarray(part) for part in mesh.cluster_connected_triangles())
        mesh.remove_triangles_by_mask(area[piece] < _LEAST_AREA * area.max())
        mesh.remove_unreferenced_vertices()
    return ColouredMesh(np.array(mesh.vertices), np.array(mesh.triangles, np.int64).reshape(-1, 3))


def measured_pixels(
    view: View, floor: Array | None = None, margin: float = 0.0
) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Find the robot's pixels with depth; return rows (N,), columns (N,) and points (N, 3) in the world frame.

    With a floor, points less than `margin` above it are left out: they are on the table beside the robot.
    """
    if view.depth_m is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 3))
    row, column = np.nonzero(view.robot & (np.nan_to_num(view.depth_m) > 0))
    at = np.stack([column, row], axis=1) + 0.5
    p = apply(view.camera.base_T_camera, view.camera.unproject(at, view.depth_m[row, column].astype(np.float64)))
    if floor is None:
        return row, column, p
    keep = p @ floor[:3] + floor[3] > margin
    return row[keep], column[keep], p[keep]


@dataclass(frozen=True, eq=False)
class FusionBackend:
    """Open3D's fusion of the depth images: only measured surfaces.

    Attributes:
        voxel: side of a voxel, metres.
        floor: (4,) plane n, d that the robot stands on: only n p + d > 0 is kept; None = no floor.
        metric: the mesh is in the world frame of the views.
    """

    voxel: float = 0.002
    floor: Array | None = None
    metric: bool = True

    def reconstruct(self, views: Sequence[View], progress: Progress) -> ColouredMesh:
        """Fuse the depth inside the masks, then colour the mesh from the images."""
        shots = []
        for view in views:
            row, column, _ = measured_pixels(view, self.floor, self.voxel)
            pixels = np.zeros(view.robot.shape, np.bool_)
            pixels[row, column] = True
            shots.append((view, pixels, np.eye(4)))
        mesh = fuse_depth(shots, self.voxel)
        if not len(mesh.faces):
            raise MeshError("no surface was measured", expected="depth inside the masks", hint="check --depth")
        return coloured(mesh, views, slack=2 * self.voxel, progress=progress)


def simplified(mesh: ColouredMesh, triangles: int) -> ColouredMesh:
    """Reduce a mesh to about `triangles` faces with Open3D's quadric edge collapse; colours are interpolated."""
    if len(mesh.faces) <= triangles:
        return mesh
    o3d = load_open3d("--triangles", "no --triangles")
    whole = o3d.geometry.TriangleMesh(
        o3d.utility.Vector3dVector(mesh.vertices), o3d.utility.Vector3iVector(mesh.faces.astype(np.int32))
    )
    if mesh.rgb is not None:
        whole.vertex_colors = o3d.utility.Vector3dVector(mesh.rgb / 255.0)
    small = whole.simplify_quadric_decimation(triangles)
    rgb = None if mesh.rgb is None else np.rint(255 * np.clip(small.vertex_colors, 0, 1)).astype(np.uint8)
    return ColouredMesh(np.array(small.vertices), np.array(small.triangles, np.int64).reshape(-1, 3), rgb)


@dataclass(frozen=True)
class ExternalCommand:
    """External program, such as a ReconViaGen checkout, started by a command line.

    Attributes:
        template: the command; {images}, {masks} and {out} are replaced by folders: images and masks as PNGs of the
            same names, and the output folder for the mesh. It is not passed to a shell.
        timeout_s: timeout after which the program and its children are killed, seconds.
        cwd: working directory, for example the checkout.
        metric: the mesh is in the world frame of the views.
        environment: additional environment variables.
    """

    template: str
    timeout_s: float = 3600.0
    cwd: Path | None = None
    metric: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reject invalid templates and timeouts."""
        try:
            words = shlex.split(self.template)
        except ValueError as error:
            raise _bad(f"--command cannot be split into words: {error}", "matching quotes") from None
        if not words or "{out}" not in self.template or "{images}" not in self.template:
            raise _bad(
                f"--command is {self.template!r}", "a command with {images} and {out}, and {masks} if it uses them"
            )
        if not (np.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise _bad(f"--timeout is {self.timeout_s}", "seconds above 0")

    def reconstruct(self, views: Sequence[View], progress: Progress) -> ColouredMesh:
        """Write images and masks, run the program, and read its mesh."""
        with tempfile.TemporaryDirectory(prefix="kinema4d_") as folder:
            places = {name: Path(folder) / name for name in ("images", "masks", "out")}
            for place in places.values():
                place.mkdir()
            for view in views:
                write_image(places["images"] / f"{view.name}.png", view.image)
                if view.mask is not None:
                    grey = np.repeat(np.where(view.mask, 255, 0).astype(np.uint8)[..., None], 3, axis=2)
                    write_image(places["masks"] / f"{view.name}.png", grey)
            progress(0, 1)
            self._run({name: str(place) for name, place in places.items()}, Path(folder) / "log")
            mesh = read_mesh_file(self._find(places["out"]))
            progress(1, 1)
            return mesh

    def _run(self, places: dict[str, str], log: Path) -> None:
        words = [_filled(word, places) for word in shlex.split(self.template)]
        with log.open("w+b") as output:
            try:
                child = Child.start(words, own_session=True, cwd=self.cwd, environment=self.environment, output=output)
            except OSError as error:
                raise _failed(f"'{words[0]}' cannot be started: {error.strerror}", "an executable program") from None
            try:
                code = child.wait(self.timeout_s)
            finally:
                child.kill_group()
            if code is None:
                raise _failed(
                    f"the back-end did not finish in {self.timeout_s:g} s{_tail(output)}",
                    "a mesh within the timeout",
                    ErrorCode.GENERATOR_TIMEOUT,
                )
            if code != 0:
                raise _failed(f"the back-end ended with {how_it_ended(code)}{_tail(output)}", "exit code 0")

    @staticmethod
    def _find(out: Path) -> Path:
        """Find the largest mesh of the best format; symlinks out of the folder are ignored."""
        root = out.resolve()
        for suffix in MESH_SUFFIXES:
            found = [p for p in out.rglob(f"*{suffix}") if p.is_file() and p.resolve().is_relative_to(root)]
            if found:
                return max(found, key=lambda p: p.stat().st_size)
        names = sorted(p.name for p in out.rglob("*"))[:10]
        raise MeshError(
            f"the back-end wrote no mesh; its folder contains {', '.join(names) or 'nothing'}",
            expected=f"a file in {{out}} that ends in {', '.join(MESH_SUFFIXES)}",
            code=ErrorCode.MESH_MISSING,
        )


def _filled(word: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        word = word.replace(f"{{{name}}}", place)
    return word


def _tail(output: IO[bytes]) -> str:
    output.flush()
    output.seek(0)
    lines = output.read()[-8000:].decode("utf-8", errors="replace").strip().splitlines()[-_LAST_LINES:]
    return ("; last output:\n  " + "\n  ".join(lines)) if lines else "; it printed nothing"


def _bad(what: str, expected: str) -> AssetError:
    return AssetError(what, expected=expected, code=ErrorCode.ARGUMENT_INVALID)


def _failed(what: str, expected: str, code: ErrorCode = ErrorCode.GENERATOR_FAILED) -> AssetError:
    return AssetError(what, expected=expected, hint="run the command manually to see its full output", code=code)
