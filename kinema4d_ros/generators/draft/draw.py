"""Draw the frames of a simulated draft: moved objects with their own pixels, the robot in its colours, moving shadows.

    image, depth, robot of frame 0, FittedScene ─ SceneDrawer ─> empty table, lamp, colours of sides and robot
    robot, poses of the objects over time ─ SceneDrawer.draw ─> Drawing (frames, source of every point)

Frame 0 is the camera's picture. Objects at rest keep their pixels. A moved object's surface takes its colour from the
same point of the first image; sides that the camera did not see get the object's colour. Where it stood, the inpainted
table appears, and objects behind it as they were fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.core.outcomes import PointBasis
from kinema4d_ros.core.pointmap import PointmapSequence, each_frame
from kinema4d_ros.core.rollout import Frames
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.generators.carry import BORDER, MAX_RANGE_M, plane_depth
from kinema4d_ros.generators.composite import MARGIN_PX
from kinema4d_ros.generators.draft._draw_kernels import (
    cast_shapes,
    compose_over,
    copy_frame,
    find_changes,
    keep_around,
    paint_shapes,
    shade_plane,
)
from kinema4d_ros.generators.draft.appearance import RobotLook, attached_parts, fit_look, shaded_robot, spread_colours
from kinema4d_ros.generators.draft.scene import Estimate, FittedScene
from kinema4d_ros.generators.draft.shadows import (
    CELL_M,
    GAMMA,
    REACH_M,
    Lighting,
    RobotCaster,
    TableGrid,
    cast_shadow,
    estimate_lighting,
    observed_shadow,
    robot_points,
)
from kinema4d_ros.generators.draft.solids import Solids, make_solids
from kinema4d_ros.generators.inpaint import grow_mask, remove_robot
from kinema4d_ros.robot.model import Robot

__all__ = ["Drawing", "Drawn", "SceneDrawer"]

MOVED_M = 0.0015
"""An object no corner of which moves farther than this is at rest."""
_ON_TABLE_M = 0.012
_SAME_M = 0.001
"""Change of the robot's depth below which its pixels are those of the first image."""
_FILL_PX = 3.0
"""Colours of an object are continued this far past its mask."""
_LEAST_ROBOT = 200
"""Robot pixels of the first image below which no lamp is looked for."""
_LEAST_SIDE = 25
"""Pixels of an object's side from which its colour is taken."""
_CHUNK = 5
"""Frames that one thread draws with the same working memory."""
_SHADE = 0.015
"""Changes of shadows below this are not drawn."""
_NEIGHBOURS = np.ones((3, 3), np.uint8)
_EVEN_LIGHT = np.array([0.0, 0.0, 1.0, 0.7, 0.7, 0.7, 0.3, 0.3, 0.3])
"""Light from above, where no lamp was found; see `Lighting.numbers`."""

Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

Drawn = Callable[[int, Frames], None]
"""Callback with the index of the first of some drawn frames, and these."""


@dataclass(frozen=True, eq=False)
class Drawing:
    """Drawn frames.

    Attributes:
        frames: rgb, xyz and the robot's mask.
        basis: (T, H, W) uint8, the source of every point: see `PointBasis`.
    """

    frames: Frames
    basis: Bytes


@dataclass(frozen=True, eq=False)
class _Shadows:
    """The lamp's shadows: the first image's as cast and as seen, and the grid coordinates (H, W, 2) of every pixel."""

    lighting: Lighting
    grid: TableGrid
    first: Floats
    seen: Floats
    place: Floats
    inside: Bools


@dataclass(frozen=True, eq=False)
class _Cast:
    """Fitted shapes seen by the camera: z (H, W) metres, infinity = none; who (H, W), 1 + object; normals, windows."""

    z: Floats
    who: Bytes
    normal: Floats
    windows: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Still:
    """The scene without the robot and without the objects that moved; the pixels whose shadows may change."""

    rgb: Bytes
    xyz: Floats
    basis: Bytes
    pixels: NDArray[np.int32]
    cells: NDArray[np.int32]
    place: Floats
    lit: Bools


@dataclass(frozen=True, eq=False)
class _Memory:
    """Working memory of one thread: colours of the robot, and where it differs from frame 0, around its margin."""

    rgb: Bytes
    differs: Bytes
    same: Bools

    @classmethod
    def of(cls, image: Bytes, window: NDArray[np.int64]) -> _Memory:
        top, bottom, left, right = window
        differs = np.zeros((bottom - top, right - left), np.uint8)
        return cls(np.zeros_like(image), differs, np.zeros(image.shape[:2], np.bool_))


class SceneDrawer:
    """Drawer of motions of one scene; what does not depend on the motion is computed once.

    Args:
        image: (H, W, 3) uint8, the first image, rectified.
        robot: the exact robot; its frame 0 is that of the image.
        scene: the fitted objects.
        depth: (H, W) float32 measured z in metres, NaN = unknown; None = not measured.
        max_range_m: maximum distance of the assumed table from the camera.
        soft_edges: blend the robot's border pixels in the images; points and masks stay exact.
        quick_fill: inpaint smoothly, without textures: for small images.
        shadows: look for a lamp, and move the shadows with robot and objects.
        model: the robot; with the poses of its links, the sides that the camera does not see cast shadows too.
        base_T_link: (L, 4, 4) float64, metres, of the links in frame 0.
    """

    def __init__(
        self,
        image: Bytes,
        robot: PointmapSequence,
        scene: FittedScene,
        *,
        depth: Floats | None = None,
        max_range_m: float = MAX_RANGE_M,
        soft_edges: bool = True,
        quick_fill: bool = False,
        shadows: bool = True,
        model: Robot | None = None,
        base_T_link: Doubles | None = None,
    ) -> None:
        """Inpaint the empty scene, and estimate lamp and colours."""
        size = robot.link_ids.shape[1:]
        for name, shape in (("image", image.shape[:2]), *((o.name, o.mask.shape) for o in scene.objects)):
            if shape != size:
                raise _refuse(
                    f"{name} is {shape[1]} x {shape[0]}", f"{size[1]} x {size[0]}, the size of the robot's frames"
                )
        self.camera: PinholeCamera = robot.camera
        self.scene = scene
        self._image, self._depth, self._soft = image, depth, soft_edges
        self._base_R = np.ascontiguousarray(self.camera.base_T_camera[:3, :3])
        self._seen_robot = robot.link_ids[0] != 0
        self._rays = self.camera.rays().astype(np.float32)
        plane = plane_depth(self.camera, scene.table_height_m, max_range_m)
        # The camera saw the robot at these pixels, so there is no plane in front of it.
        with np.errstate(invalid="ignore"):
            plane[self._seen_robot & (plane < robot.xyz[0, ..., 2])] = np.nan
        self._plane = plane.astype(np.float32)
        self._masks = np.stack([o.mask for o in scene.objects]) if scene.objects else np.zeros((0, *size), np.bool_)
        self._objects = _union(self._masks)
        self._border = max(1.0, BORDER * self.camera.width)
        height = self._heights()
        margin = grow_mask(self._seen_robot, MARGIN_PX * self.camera.width / 720)
        around = grow_mask(self._objects, 2.0)
        self.parts = attached_parts(image, self._seen_robot, margin, around, height, depth, robot.xyz[0, ..., 2])
        """(H, W) bool: pixels that hang on the robot but are not in its URDF; they leave with it."""
        self._margin = margin
        self._reach_px = int(np.ceil(MARGIN_PX * self.camera.width / 720))
        self._around = _window(margin, self._reach_px)
        self._hole = margin | grow_mask(self.parts, self._border / 2)
        table = np.isfinite(self._plane) & ~self._hole & ~around
        if height is not None:
            with np.errstate(invalid="ignore"):
                table &= np.abs(height) < _ON_TABLE_M
        self._table = table
        best = [o.estimates[0] for o in scene.objects]
        self._caster = None if model is None else RobotCaster.of(model)
        self._shadows = self._find_shadows(robot, best, base_T_link) if shadows else None
        everything = self._hole | grow_mask(self._objects, self._border)
        self._empty = remove_robot(self._unshadowed(), everything, quick=quick_fill)
        self._labels, self._picture = self._own_pixels()
        key = None
        self._light = _EVEN_LIGHT
        if self._shadows is not None:
            lighting, middle = self._shadows.lighting, _middle(robot, self.camera)
            key, self._light = lighting.direction(middle), lighting.numbers(middle)
        self.look: RobotLook | None = fit_look(image, robot, shaded_robot(robot)[0], self._objects, key)

    @property
    def lighting(self) -> Lighting | None:
        """The lamp that was found; None = shadows are left alone."""
        return None if self._shadows is None else self._shadows.lighting

    def frames(
        self,
        robot: PointmapSequence,
        base_T_object: Doubles,
        estimates: Sequence[Estimate],
        base_T_link: Doubles | None = None,
    ) -> Frames:
        """Draw the frames only; see `draw`."""
        return self.draw(robot, base_T_object, estimates, base_T_link).frames

    def draw(
        self,
        robot: PointmapSequence,
        base_T_object: Doubles,
        estimates: Sequence[Estimate],
        base_T_link: Doubles | None = None,
        drawn: Drawn | None = None,
    ) -> Drawing:
        """Draw the motion of robot and objects.

        Args:
            robot: T frames of the exact robot, of the same camera; the first is that of the image.
            base_T_object: (T, N, 4, 4) float64, metres, of the scene's objects in their order.
            estimates: the N shapes that were simulated.
            base_T_link: (T, L, 4, 4) float64, metres, of the robot's links; with them, the links have their own pixels
                where the first image shows them, and also their hidden sides cast shadows.
            drawn: called in this thread with the index of the first of some frames and these, in order, as they are
                drawn.
        """
        count, things = len(robot), len(self.scene.objects)
        poses = np.ascontiguousarray(base_T_object, np.float64)
        if poses.shape != (count, things, 4, 4) or len(estimates) != things:
            raise _refuse(
                f"poses have shape {poses.shape}, and there are {len(estimates)} estimates",
                f"({count}, {things}, 4, 4): the robot's frames, and the objects of the scene",
            )
        if robot.link_ids.shape[1:] != self._image.shape[:2]:
            raise _refuse(f"the robot's frames are {robot.link_ids.shape[1:]}", f"{self._image.shape[:2]}")
        solids = make_solids(estimates)
        moved = _moved(solids, poses)
        seen = self.camera.camera_T_base @ poses
        first = self._cast(solids, seen[0], np.ones(things, np.bool_)) if count else None
        frames = Frames.empty(*robot.link_ids.shape)
        basis = np.empty(robot.link_ids.shape, np.uint8)
        if first is None:
            return Drawing(frames, basis)
        tint = self._tints(first, poses[0])
        casters = [solids.points(i, CELL_M) for i in range(things)]
        shaded = shaded_robot(robot)
        stills = {
            which.tobytes(): self._still(solids, seen[0], which, first, tint) for which in np.unique(moved, axis=0)
        }

        def draw_some(part: range) -> range:
            scratch, memory = self._scratch(things), _Memory.of(self._image, self._around)
            for t in part:
                rgb, xyz, mask = frames.rgb[t], frames.xyz[t], frames.robot_mask[t]
                if t == 0:
                    self._draw_first(robot, first, rgb, xyz, mask, basis[t])
                    continue
                still = stills[moved[t].tobytes()]
                copy_frame(still.rgb, still.xyz, still.basis, rgb, xyz, basis[t])
                self._keep_around(robot, t, memory, rgb)
                if self._shadows is not None:
                    points = self._casting(robot, t, poses[t], casters, base_T_link)
                    self._shade(self._shadows, points, still, memory.same, rgb)
                if moved[t].any():
                    cast_shapes(*solids.arrays, seen[t], moved[t], self.camera.K, *scratch)
                    self._paint(scratch, seen[t], seen[0], first, tint, rgb, xyz, basis[t])
                painted = shaded[t]
                if self.look is not None:
                    back = self._backwards(base_T_link, t)
                    self.look.paint(robot, t, painted, back, memory.same, memory.rgb)
                    painted = memory.rgb
                compose_over(robot.xyz[t], robot.link_ids[t], painted, self._soft, rgb, xyz, mask, basis[t])
            return part

        parts = [range(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)]
        with closing(each_frame(draw_some, parts)) as done:
            for part in done:
                if drawn is not None:
                    drawn(part.start, frames[part.start : part.stop])
        return Drawing(frames, basis)

    def _backwards(self, base_T_link: Doubles | None, t: int) -> Doubles | None:
        """Return (256, 3, 4) by link id: from the camera frame to the link's same point in frame 0; None = unknown."""
        if base_T_link is None:
            return None
        moves = base_T_link[0] @ np.linalg.inv(base_T_link[t])
        back = np.zeros((256, 3, 4))
        back[1 : len(moves) + 1] = (self.camera.camera_T_base @ moves @ self.camera.base_T_camera)[:, :3]
        return back

    def _keep_around(self, robot: PointmapSequence, t: int, memory: _Memory, rgb: Bytes) -> None:
        """Find the pixels of frame 0's robot and its margin near which it is where it was; they keep the image."""
        if not memory.differs.size:
            return
        first_xyz, first_ids = robot.xyz[0], robot.link_ids[0]
        find_changes(robot.xyz[t], robot.link_ids[t], first_xyz, first_ids, _SAME_M, self._around, memory.differs)
        side = 2 * self._reach_px + 1
        grown = cv2.dilate(memory.differs, np.ones((side, side), np.uint8))
        keep_around(grown, self._around, self._margin, first_ids, self._image, memory.same, rgb)

    @staticmethod
    def _shade(shadows: _Shadows, points: Doubles, still: _Still, same: Bools, rgb: Bytes) -> None:
        """Exchange the first image's shadows for those of the points (M, 3), base frame."""
        now = cast_shadow(points, shadows.lighting.position, shadows.grid)
        # Pixels without a shadow need the new one, also where the first image had the same.
        changed = cv2.dilate(((np.abs(now - shadows.first) > _SHADE) | (now > _SHADE)).astype(np.uint8), _NEIGHBOURS)
        shade_plane(
            still.pixels, still.cells, still.place, still.lit, same, changed, shadows.first, shadows.seen, now,
            shadows.lighting.strength, rgb,
        )  # fmt: skip

    def _draw_first(
        self, robot: PointmapSequence, first: _Cast, rgb: Bytes, xyz: Floats, mask: Bools, basis: Bytes
    ) -> None:
        """Draw frame 0: the image; measured points, or fitted objects and the table; and the exact robot."""
        rgb[:] = self._image
        z, source = self._points(~self._seen_robot, (first.who != 0) & (self._objects | self._seen_robot), first.z)
        xyz[:] = self._rays * z[..., None]
        basis[:] = source
        compose_over(robot.xyz[0], robot.link_ids[0], rgb.copy(), False, rgb, xyz, mask, basis)
        rgb[:] = self._image

    def _points(self, measured: Bools, fitted: Bools, fitted_z: Floats) -> tuple[Floats, Bytes]:
        """Return z (H, W) and its source: measured depth where allowed, else fitted shapes, else the table."""
        z, source = (
            self._plane.copy(),
            np.where(np.isfinite(self._plane), PointBasis.PLANE, PointBasis.UNKNOWN).astype(np.uint8),
        )
        z[fitted], source[fitted] = fitted_z[fitted], PointBasis.FITTED
        if self._depth is not None:
            given = measured & np.isfinite(self._depth)
            z[given], source[given] = self._depth[given], PointBasis.MEASURED
        return z, source

    def _still(self, solids: Solids, seen: Doubles, moved: Bools, first: _Cast, tint: Doubles) -> _Still:
        """Compute the scene at rest without the robot and without the moved objects."""
        resting = _union(self._masks[~moved]) & ~self._hole
        gone = _union(self._masks[moved])
        hole = self._hole | (grow_mask(gone, self._border) & ~resting)
        here = self._cast(solids, seen, ~moved)
        behind = (here.who != 0) & (hole | resting)
        rgb = np.where(hole[..., None], self._empty, self._image)
        z, basis = self._points(~hole, behind & ~hole, here.z)
        xyz = self._rays * z[..., None]
        if (behind & hole).any():
            full = rgb.copy(), xyz.copy(), basis.copy()
            self._paint((here.z, here.who, here.normal, here.windows), seen, seen, first, tint, *full)
            for target, drawn in zip((rgb, xyz, basis), full, strict=True):
                target[hole] = drawn[hole]
        pixels = np.zeros(0, np.int32)
        bare = hole & (basis == PointBasis.PLANE)
        if self._shadows is not None:
            pixels = np.flatnonzero((bare | (self._table & ~hole)) & self._shadows.inside).astype(np.int32)
        return _Still(rgb, xyz, basis, pixels, *self._cells(pixels), bare.ravel()[pixels])

    def _cells(self, pixels: NDArray[np.int32]) -> tuple[NDArray[np.int32], Floats]:
        """Return the nearest cell (P,) of the shadow maps and the exact place (P, 2) in them, of some pixels."""
        if self._shadows is None:
            return np.zeros(0, np.int32), np.zeros((0, 2), np.float32)
        place = self._shadows.place.reshape(-1, 2)[pixels]
        rows, columns = self._shadows.grid.shape
        nearest = np.clip(np.rint(place), 0, (rows - 1, columns - 1)).astype(np.int32)
        return nearest[:, 0] * np.int32(columns) + nearest[:, 1], place

    def _paint(
        self,
        cast: tuple[Floats, Bytes, Floats, NDArray[np.int64]],
        seen: Doubles,
        seen_first: Doubles,
        first: _Cast,
        tint: Doubles,
        rgb: Bytes,
        xyz: Floats,
        basis: Bytes,
    ) -> None:
        z, who, normal, windows = cast
        paint_shapes(
            windows, z, who, normal, seen, self._base_R, seen_first, self.camera.K, self._picture, self._labels,
            first.z, first.who, tint, self._light, rgb, xyz, basis,
        )  # fmt: skip

    def _scratch(self, things: int) -> tuple[Floats, Bytes, Floats, NDArray[np.int64]]:
        size = self._image.shape[:2]
        return (
            np.full(size, np.inf, np.float32),
            np.zeros(size, np.uint8),
            np.zeros((*size, 3), np.float32),
            np.zeros((things, 4), np.int64),
        )

    def _cast(self, solids: Solids, seen: Doubles, active: Bools) -> _Cast:
        cast = _Cast(*self._scratch(len(solids)))
        cast_shapes(*solids.arrays, seen, active, self.camera.K, cast.z, cast.who, cast.normal, cast.windows)
        return cast

    def _heights(self) -> Floats | None:
        """Return the measured height (H, W) above the table, metres, NaN = unknown; None without depth."""
        if self._depth is None:
            return None
        pose = self.camera.base_T_camera
        return np.asarray(
            self._depth * (self._rays @ pose[2, :3]) + (pose[2, 3] - self.scene.table_height_m), np.float32
        )

    def _tints(self, first: _Cast, poses: Doubles) -> Doubles:
        """Return the linear colour (N, 6, 3) of each object's sides as on the lit table; unseen sides get the mean."""
        tints = np.full((len(poses), 6, 3), 0.2)
        for i, mask in enumerate(self._masks):
            used = mask & (first.who == i + 1) & (self._labels == i + 1)
            if not used.any():
                used = mask
                if not used.any():
                    continue
            colour = (self._image[used] / 255.0) ** GAMMA
            n = first.normal[used].astype(np.float64)
            light = self._light[3:6] * (0.75 + 0.25 * (n @ poses[i, 2, :3]))[:, None]
            light = light + self._light[6:9] * np.maximum(n @ (poses[i, :3, :3].T @ self._light[:3]), 0.0)[:, None]
            own = colour / np.maximum(light, 0.05)
            tints[i] = np.median(own, axis=0)
            axis = np.abs(n).argmax(1)
            side = 2 * axis + (n[np.arange(len(n)), axis] > 0)
            for k in range(6):
                if (side == k).sum() >= _LEAST_SIDE:
                    tints[i, k] = np.median(own[side == k], axis=0)
        return tints

    def _own_pixels(self) -> tuple[Bytes, Bytes]:
        """Return (H, W) 1 + object whose own colour a pixel of the picture (H, W, 3) has, and that picture.

        The borders of the masks mix object and background; they get the colour of the nearest pixel inside.
        """
        labels = np.zeros(self._image.shape[:2], np.uint8)
        cross = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
        for i, mask in enumerate(self._masks):
            inner = cv2.erode(mask.astype(np.uint8), cross) != 0
            sure = inner if inner.sum() > 0.3 * mask.sum() else mask
            labels[sure & ~self._hole] = i + 1
        return spread_colours(self._image, labels, _FILL_PX)

    def _find_shadows(
        self, robot: PointmapSequence, best: Sequence[Estimate], base_T_link: Doubles | None
    ) -> _Shadows | None:
        """Look for the lamp in the first image."""
        height = self.scene.table_height_m
        solids = make_solids(best)
        poses = np.array([e.base_T_object for e in best]).reshape(-1, 4, 4)
        casters = [solids.points(i, CELL_M) for i in range(len(solids))]
        links = None if base_T_link is None else base_T_link[None]
        every = self._casting(robot, 0, poses, casters, links)
        if np.count_nonzero(self._seen_robot) < _LEAST_ROBOT:
            return None
        lighting = estimate_lighting(self._image, self._table, self.camera, every[::3], height)
        if lighting is None:
            return None
        pose = self.camera.base_T_camera
        ground = (self._rays * self._plane[..., None]) @ pose[:2, :3].T + pose[:2, 3]
        with np.errstate(invalid="ignore"):
            near = np.isfinite(self._plane) & (np.abs(ground - every[:, :2].mean(0)) < 2 * REACH_M).all(-1)
        if not near.any():
            return None
        grid = TableGrid.around(ground[near].min(0), ground[near].max(0), height, CELL_M)
        place = grid.coordinates(np.where(near[..., None], ground, 0.0))
        first = cast_shadow(every, lighting.position, grid)
        seen = observed_shadow(self._image, self._table, self.camera, grid, first, float(lighting.strength.mean()))
        return _Shadows(lighting, grid, first, seen, place, near)

    def _casting(
        self,
        robot: PointmapSequence,
        t: int,
        poses: Doubles,
        casters: Sequence[Doubles],
        base_T_link: Doubles | None,
    ) -> Doubles:
        """Return the points (M, 3), base frame, of robot and objects that cast shadows in a frame."""
        if self._caster is not None and base_T_link is not None:
            arm = self._caster.points(base_T_link[t])
        else:
            arm = robot_points(robot.xyz[t], robot.link_ids[t], self.camera, _stride(self.camera))
        return np.concatenate([arm, *(apply(T, p) for T, p in zip(poses, casters, strict=True))])

    def _unshadowed(self) -> Bytes:
        """Return the image with the shadows on its table removed."""
        if self._shadows is None:
            return self._image
        rgb = self._image.copy()
        pixels = np.flatnonzero(self._table & self._shadows.inside).astype(np.int32)
        cells, place = self._cells(pixels)
        first = self._shadows.first
        shade_plane(
            pixels, cells, place, np.zeros(len(pixels), np.bool_), np.zeros(rgb.shape[:2], np.bool_),
            np.ones(first.shape, np.uint8), first, self._shadows.seen, np.zeros_like(first),
            self._shadows.lighting.strength, rgb,
        )  # fmt: skip
        return rgb


def _moved(solids: Solids, poses: Doubles) -> Bools:
    """Return (T, N) bool: whether an object has left its first place in this frame or an earlier one."""
    signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], np.float64)
    corners = signs[None] * solids.boxes[:, None]
    placed = np.einsum("tnij,nkj->tnki", poses[..., :3, :3], corners) + poses[:, :, None, :3, 3]
    away = np.linalg.norm(placed - placed[:1], axis=-1).max(-1) if len(solids) else np.zeros(poses.shape[:2])
    return np.asarray(np.maximum.accumulate(away, axis=0) > MOVED_M)


def _window(mask: Bools, border: int) -> NDArray[np.int64]:
    """Return first and last row and column (4,), ends exclusive, around a mask (H, W); zeros for an empty one."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return np.zeros(4, np.int64)
    height, width = mask.shape
    top, left = max(int(rows[0]) - border, 0), max(int(columns[0]) - border, 0)
    return np.array([top, min(int(rows[-1]) + border + 1, height), left, min(int(columns[-1]) + border + 1, width)])


def _union(masks: Bools) -> Bools:
    return np.asarray(masks.any(axis=0))


def _stride(camera: PinholeCamera) -> int:
    """Pixels between points of the robot that are a bit less than a cell apart at a distance of 1 m."""
    return max(1, int(0.7 * CELL_M * camera.K[0, 0]))


def _middle(robot: PointmapSequence, camera: PinholeCamera) -> Doubles:
    """Return the middle (3,) of the robot of frame 0, base frame."""
    p = robot.xyz[0][robot.link_ids[0] != 0].astype(np.float64).mean(0)
    return np.asarray(camera.base_T_camera[:3, :3] @ p + camera.base_T_camera[:3, 3])


def _refuse(what: str, expected: str) -> GeneratorError:
    return GeneratorError(what, expected=expected, code=ErrorCode.GENERATOR_BAD_REQUEST)
