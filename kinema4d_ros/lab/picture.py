"""`LabCamera`: images of the lab, rendered with our own rasteriser without OpenGL or a display.

LabState ─> poses ─┬─> rasteriser, twice the size ─> light_picture() ─> Sensor ─> rgb
calibration file ──┤─> rasteriser, from the lamp ──> shadows
                   └─> rasteriser, exact size ─────> depth, segmentation (on request)
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import RenderError
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.lab.lens import Lens
from kinema4d_ros.lab.materials import TEXTURE_PIXELS, Material, Style, light_to_srgb, linear, table_texture
from kinema4d_ros.lab.sensor import Sensor
from kinema4d_ros.lab.shading import Light, Looks, gather_shadow, light_picture, occlude
from kinema4d_ros.lab.shapes import box_geometry, object_geometries
from kinema4d_ros.lab.simulation import LabSimulation, LabState
from kinema4d_ros.physics.model import Room
from kinema4d_ros.physics.objects import LabObject
from kinema4d_ros.render.api import NEAR_M
from kinema4d_ros.render.clusters import merge_vertices
from kinema4d_ros.render.numba_raster import render_frame
from kinema4d_ros.render.packed import Packed, Scratch, make_scratch
from kinema4d_ros.render.scene import Scene
from kinema4d_ros.render.shading import LAMPS
from kinema4d_ros.robot.model import Geometry, Robot

__all__ = ["FULL", "SMALL", "Drawing", "LabCamera", "LabImage", "Painter", "Quality", "join_packed"]

_CELLS = 256
"""Cells along a side of the shadow map; a cell covers the same part of the room at every shadow map size."""


@dataclass(frozen=True)
class Quality:
    """Resolution of shadows and textures; geometry, depth and segmentation are exact at every quality.

    Attributes:
        shadow_pixels: side of the shadow map, a multiple of 256.
        texture_pixels: side of the table's texture.
        shadow_grid_m: vertices of the robot closer than about this are merged for its shadow; 0 = the exact robot.
    """

    shadow_pixels: int = 1024
    texture_pixels: int = TEXTURE_PIXELS
    shadow_grid_m: float = 0.0

    def __post_init__(self) -> None:
        """Reject sizes that cannot be rendered."""
        if self.shadow_pixels < _CELLS or self.shadow_pixels % _CELLS or not 64 <= self.texture_pixels <= 8192:
            raise RenderError(
                f"shadow_pixels is {self.shadow_pixels}, texture_pixels is {self.texture_pixels}",
                expected=f"a multiple of {_CELLS}, and 64 to 8192",
            )
        if not 0.0 <= self.shadow_grid_m <= 0.02:
            raise RenderError(f"shadow_grid_m is {self.shadow_grid_m}", expected="0 to 0.02 metres")

    @property
    def shadow_cells(self) -> int:
        """Cells along a side of the shadow map."""
        return _CELLS

    def shadow_robot(self, robot: Robot) -> Packed:
        """Return the triangles of the robot that cast the shadow."""
        return _coarse(robot, self.shadow_grid_m) if self.shadow_grid_m else Scene.from_robot(robot).packed_rgb


FULL = Quality()
SMALL = Quality(shadow_pixels=512, texture_pixels=512, shadow_grid_m=0.004)
"""For images of about 150 x 100 pixels: half the time, without a visible difference."""


@lru_cache(maxsize=4)
def _coarse(robot: Robot, grid_m: float) -> Packed:
    parts = [
        (i, replace(shape, mesh=merge_vertices(shape.mesh, grid_m)))
        for i, link in enumerate(robot.links)
        for shape in link.visuals
    ]
    return Scene(parts, len(robot.links)).packed_rgb


class Drawing(NamedTuple):
    """Geometry buffers rendered by a `Painter`, which owns and reuses them for its next drawing of that size.

    Attributes:
        xyz: (H, W, 3) float32, metres, camera frame, NaN = nothing.
        ids: (H, W) uint8, 1 + link, 0 = nothing.
        face: (H, W) int32, face of `packed`; undefined where ids is 0.
        camera_T_link: (L, 3, 4) float64.
        packed: the triangles.
        face_cluster: (F,) int32, the cluster of each face.
    """

    xyz: NDArray[np.float32]
    ids: NDArray[np.uint8]
    face: NDArray[np.int32]
    camera_T_link: NDArray[np.float64]
    packed: Packed
    face_cluster: NDArray[np.int32]


class _Buffers(NamedTuple):
    scratch: Scratch
    xyz: NDArray[np.float32]
    ids: NDArray[np.uint8]
    rgb: NDArray[np.uint8]


class Painter:
    """Renderer of packed triangles that keeps its buffers between drawings."""

    def __init__(self, packed: Packed, link_count: int) -> None:
        """Prepare the triangles of `link_count` links."""
        self.packed, self.link_count = packed, link_count
        self._face_cluster = np.repeat(np.arange(len(packed.cluster_part), dtype=np.int32), np.diff(packed.face_start))
        self._buffers: dict[tuple[int, int], _Buffers] = {}

    def draw(self, base_T_link: NDArray[np.float64], camera: PinholeCamera) -> Drawing:
        """Render links at poses (L, 4, 4) in metres for a camera without distortion."""
        size = (camera.height, camera.width)
        if size not in self._buffers:
            self._buffers[size] = _Buffers(
                make_scratch(self.packed, *size, rgb=True),
                np.empty((*size, 3), np.float32),
                np.empty(size, np.uint8),
                np.empty((*size, 3), np.uint8),
            )
        buffers = self._buffers[size]
        camera_T_link = np.ascontiguousarray((camera.camera_T_base @ base_T_link)[:, :3])
        render_frame(
            self.packed,
            camera_T_link,
            _camera_numbers(camera),
            LAMPS,
            buffers.scratch,
            buffers.xyz,
            buffers.ids,
            buffers.rgb,
            True,
        )
        return Drawing(buffers.xyz, buffers.ids, buffers.scratch.face, camera_T_link, self.packed, self._face_cluster)


def join_packed(packs: Sequence[tuple[Packed, int]]) -> Packed:
    """Join several `Packed`, each with an offset for its link numbers; parts keep their order."""
    joined: dict[str, Any] = {}
    for name in Packed._fields:
        arrays = [getattr(packed, name) for packed, _ in packs]
        if name.endswith("_start"):
            lengths = np.concatenate([np.diff(a) for a in arrays])
            joined[name] = np.concatenate([[0], np.cumsum(lengths)])
        elif name == "cluster_part":
            counts = np.cumsum([0, *(len(packed.part_link) for packed, _ in packs)])
            joined[name] = np.concatenate([a + first for a, first in zip(arrays, counts[:-1], strict=True)])
        elif name == "part_link":
            joined[name] = np.concatenate([a + offset for a, (_, offset) in zip(arrays, packs, strict=True)])
        else:
            joined[name] = np.concatenate(arrays)
    return Packed(**joined)


def _camera_numbers(camera: PinholeCamera) -> NDArray[np.float64]:
    """Return the camera parameters (9,) of `render_frame`."""
    (fx, skew, cx), (_, fy, cy), _ = camera.K
    corners = np.array([[u, v, 1.0] for u in (0, camera.width) for v in (0, camera.height)])
    reach = float(np.linalg.norm(corners @ np.linalg.inv(camera.K).T, axis=1).max())
    return np.array([fx, skew, cx - 0.5, fy, cy - 0.5, camera.width, camera.height, NEAR_M, NEAR_M * reach])


LAMP_RADIUS_M = 0.05
LAMP_FOV_DEG = 62.0
LAMP_TARGET = (0.22, 0.0, 0.10)
SKY_STEP = 4
"""Ambient occlusion is computed at every fourth subsample, which is every second pixel."""

STILL = 1e-6
"""Poses that differ by less, in metres and rotation matrix entries, reuse the last image."""

_FURNITURE = ("table", "floor", "back_wall", "side_wall")


@dataclass(frozen=True, eq=False)
class LabImage:
    """An image and, if requested, its ground truth at the pixel centres.

    Attributes:
        rgb: (H, W, 3) uint8, sRGB.
        camera: of the image; with lens distortion if the calibration has it.
        time_s: simulation time.
        depth_m: (H, W) float32, metres along the optical axis, NaN = nothing; None if not requested.
        segmentation: (H, W) uint8, 0 = nothing, otherwise 1 + index in `names`; None if not requested.
        names: links of the robot first (in `robot.links` order), then furniture, then objects.
    """

    rgb: NDArray[np.uint8]
    camera: PinholeCamera
    time_s: float
    depth_m: NDArray[np.float32] | None
    segmentation: NDArray[np.uint8] | None
    names: tuple[str, ...]

    def mask(self, name: str) -> NDArray[np.bool_]:
        """Return the visible pixels of one link, object or piece of furniture, (H, W) bool."""
        if self.segmentation is None:
            raise RenderError("the image has no segmentation", expected="capture(..., truth=True)")
        if name not in self.names:
            raise RenderError(f"{name!r} is not in the image", expected=f"one of {', '.join(self.names)}")
        return np.asarray(self.segmentation == self.names.index(name) + 1)


class _World(NamedTuple):
    """Packed geometry and materials of the scene for one set of objects."""

    everything: Painter
    casters: Painter
    looks: Looks
    names: tuple[str, ...]


class LabCamera:
    """Camera that renders lab states. Not thread safe: use one camera per thread; states may be shared.

    Args:
        robot: the robot of the states.
        camera: by default the demo camera, `calibration/demo_lab.yaml`.
        room: of the simulation.
        style: table, walls and light.
        threads: used for shading; rasterising uses one. The result does not depend on it.
        noise: standard deviation of sensor noise, 8-bit steps; seeded by the image's time.
        sensor: all faults of the images, instead of `noise` alone; depth and segmentation stay exact. The attribute
            may be set between two images.
        quality: of shadows and textures; `SMALL` for many small images.
    """

    def __init__(
        self,
        robot: Robot,
        camera: PinholeCamera | None = None,
        *,
        room: Room | None = None,
        style: Style | None = None,
        threads: int = 1,
        noise: float = 0.0,
        sensor: Sensor | None = None,
        quality: Quality = FULL,
    ) -> None:
        """Pack the robot and the room; objects are packed when a state first contains them."""
        self.camera = camera or read_camera(share_path("calibration/demo_lab.yaml"))
        if threads < 1 or not noise >= 0.0 or (noise > 0.0 and sensor is not None):
            raise RenderError(
                f"threads is {threads}, noise is {noise}, sensor is {sensor}",
                expected="1 or more, and 0 or more, which is 0 if a sensor is given",
            )
        self.sensor = sensor or Sensor(noise)
        self._lens = Lens(self.camera)
        pinhole = self._lens.pinhole
        self._double = pinhole.scaled(2 * pinhole.width, 2 * pinhole.height)
        self._robot, self._room, self._threads = robot, room or Room(), threads
        self._style = style or Style()
        self._robot_packed = Scene.from_robot(robot).packed_rgb
        self._quality = quality
        self._shadow_robot = quality.shadow_robot(robot)
        self._robot_materials = [
            _robot_material(shape, self._style)
            for link in robot.links
            for shape in link.visuals
            if len(shape.mesh.faces)
        ]
        x0, x1, y0, y1 = self._room.table
        self._texture = table_texture(self._style, (x1 - x0, y1 - y0), quality.texture_pixels)
        self._table = np.array([x0, 1 / (x1 - x0), y0, 1 / (y1 - y0)])
        self._furniture, self._furniture_materials = self._furnish()
        side = quality.shadow_pixels
        self._lamp = PinholeCamera.look_at(
            self._style.lamp, LAMP_TARGET, width=side, height=side, fov_y_deg=LAMP_FOV_DEG
        )
        self._curve = _tone_curve()
        self._objects: tuple[LabObject, ...] | None = None
        self._world: _World | None = None
        self._last_poses: NDArray[np.float64] | None = None
        self._last_rgb = np.empty((0, 0, 3), np.uint8)
        self._last_truth: tuple[NDArray[np.float32], NDArray[np.uint8]] | None = None

    @classmethod
    def of(cls, lab: LabSimulation, camera: PinholeCamera | None = None, **options: object) -> LabCamera:
        """Make a camera with the robot and the room of a simulation, and the sensor of its scene unless given."""
        if not {"noise", "sensor"} & set(options):
            options["sensor"] = lab.sensor
        return cls(lab.robot, camera, room=lab.room, **options)  # type: ignore[arg-type]

    def capture(self, lab: LabSimulation | LabState, *, truth: bool = False) -> LabImage:
        """Render a state; `truth` adds depth and segmentation.

        Depth and segmentation are exact at pixel centres; with lens distortion, at the nearest pixel centre of
        the pinhole image.
        """
        state = lab.state() if isinstance(lab, LabSimulation) else lab
        world = self._pack(state)
        poses = np.concatenate(
            [
                state.base_T_link,
                np.tile(np.eye(4), (len(_FURNITURE), 1, 1)),
                *[o.base_T_object[None] for o in state.objects.values()],
            ]
        )
        if not self._unchanged(poses):
            self._last_rgb, self._last_truth = self._paint(world, poses), None
            self._last_poses = poses
        depth = segmentation = None
        if truth:
            if self._last_truth is None:
                exact = world.everything.draw(poses, self._lens.pinhole)
                self._last_truth = exact.xyz[..., 2].copy(), exact.ids.copy()
            depth = self._lens.bend(self._last_truth[0], "nearest").copy()
            segmentation = self._lens.bend(self._last_truth[1], "nearest").copy()
        rgb = self.sensor.develop(self._lens.bend(self._last_rgb, "linear").copy(), state.time_s)
        return LabImage(rgb, self.camera, state.time_s, depth, segmentation, world.names)

    def _unchanged(self, poses: NDArray[np.float64]) -> bool:
        """Return whether all poses are within `STILL` of those of the last image, which can then be reused."""
        last = self._last_poses
        return last is not None and last.shape == poses.shape and bool(np.abs(last - poses).max() < STILL)

    def _paint(self, world: _World, poses: NDArray[np.float64]) -> NDArray[np.uint8]:
        camera = self._lens.pinhole
        double = self._double
        shadow, nearest, farthest = self._shadows(world, poses)
        drawing = world.everything.draw(poses, double)
        sky = self._sky(drawing, float(double.K[0, 0]))
        rgb = np.empty((camera.height, camera.width, 3), np.uint8)
        warm = self._style.warmth
        lamp_rgb = np.array([1.0 + 0.10 * warm, 1.0, 1.0 - 0.14 * warm, 2.3])
        ambient = np.array([*(0.50, 0.53, 0.58 - 0.04 * warm), *(0.30 + 0.02 * warm, 0.27, 0.24 - 0.02 * warm), 0.9])
        light = Light(
            base_R=np.ascontiguousarray(camera.base_T_camera[:3, :3]),
            position=(camera.camera_T_base @ np.array([*self._style.lamp, 1.0]))[:3],
            rgb=lamp_rgb,
            ambient=ambient,
            background=np.array(linear(self._style.wall_rgb)) * 0.8,
            lamp_T_camera=np.ascontiguousarray((self._lamp.camera_T_base @ camera.base_T_camera)[:3]),
            lens=np.array([self._lamp.K[0, 0], self._lamp.K[0, 2], LAMP_RADIUS_M]),
            depth=shadow,
            nearest=nearest,
            farthest=farthest,
        )
        arguments = (drawing, world.looks, light, sky, rgb)
        bounds = np.linspace(0, camera.height, self._threads + 1).astype(int).tolist()
        helpers = [
            threading.Thread(target=light_picture, args=(*arguments, first, last), daemon=True)
            for first, last in pairwise(bounds[1:])
        ]
        for helper in helpers:
            helper.start()
        light_picture(*arguments, 0, bounds[1])
        for helper in helpers:
            helper.join()
        return rgb

    def _shadows(
        self, world: _World, poses: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        drawing = world.casters.draw(poses, self._lamp)
        side, cells = self._quality.shadow_pixels, self._quality.shadow_cells
        depth = np.empty((side, side), np.float32)
        # Depth extremes by cell over the widest penumbra: most pixels are fully lit or shadowed and need only these.
        low, high = (np.empty((cells, cells), np.float32) for _ in range(2))
        gather_shadow(drawing.xyz, drawing.ids, depth, low, high)
        reach = np.ones((9, 9), np.uint8)
        nearest = cv2.erode(low, reach)
        farthest = cv2.dilate(high, reach)
        return depth, np.asarray(nearest, np.float32), np.asarray(farthest, np.float32)

    def _sky(self, drawing: Drawing, focal: float) -> NDArray[np.float32]:
        height, width = drawing.ids.shape
        sky = np.empty((height // SKY_STEP, width // SKY_STEP), np.float32)
        occlude(drawing.xyz, SKY_STEP, focal, sky)
        blurred = cv2.blur(sky, (4, 4))
        return np.asarray(blurred, np.float32)

    def _pack(self, state: LabState) -> _World:
        objects = tuple(o.object for o in state.objects.values())
        if self._world is not None and objects == self._objects:
            return self._world
        links = len(self._robot.links)
        count = links + len(_FURNITURE) + len(objects)
        parts = [(i, shape) for i, thing in enumerate(objects) for shape in object_geometries(thing)]
        others: list[tuple[Packed, int]] = []
        materials = list(self._robot_materials)
        if parts:
            others = [(Scene(parts, len(objects)).packed_rgb, links + len(_FURNITURE))]
            materials += [Material(linear(objects[i].rgb), 0.045, 45.0) for i, _ in parts]
        casters = join_packed([(self._shadow_robot, 0), *others])
        everything = join_packed([(self._robot_packed, 0), *others, (self._furniture, links)])
        looks = [*materials, *self._furniture_materials]
        table = np.array([[*m.rgb, m.mirror, m.gloss, float(m.textured)] for m in looks])
        names = (*(link.name for link in self._robot.links), *_FURNITURE, *(o.name for o in objects))
        self._objects = objects
        self._world = _World(
            Painter(everything, count),
            Painter(casters, count),
            Looks(table, self._texture, self._table, self._curve),
            names,
        )
        return self._world

    def _furnish(self) -> tuple[Packed, Sequence[Material]]:
        room = self._room
        x0, x1, y0, y1 = room.table
        top, thick, high = room.table_z, room.table_thickness, room.wall_height
        wall = self._style.wall_rgb
        far, floor = 3.0, room.floor_z
        # Separate slabs cull and sort better than one large mesh of the room.
        shapes = [
            (0, _slab((x0, y0, top - thick), (x1, y1, top))),
            (1, _slab((room.back_wall_x, -far, floor - 0.05), (far, room.side_wall_y, floor))),
            (2, _slab((room.back_wall_x - 0.05, -far, floor), (room.back_wall_x, room.side_wall_y + 0.05, high))),
            (3, _slab((room.back_wall_x, room.side_wall_y, floor), (far, room.side_wall_y + 0.05, high))),
        ]
        materials = [
            Material((0.5, 0.4, 0.3), 0.035, 22.0, textured=True),
            Material(linear((0.45, 0.46, 0.48)), 0.02, 8.0),
            Material(linear(wall), 0.0, 4.0),
            Material(linear(wall), 0.0, 4.0),
        ]
        return Scene(shapes, len(_FURNITURE)).packed_rgb, materials


def _slab(low: tuple[float, float, float], high: tuple[float, float, float]) -> Geometry:
    a, b = np.array(low), np.array(high)
    return box_geometry((a + b) / 2, b - a, (0.7, 0.7, 0.7))


def _robot_material(shape: Geometry, style: Style) -> Material:
    rgb = (0.74, 0.76, 0.79) if shape.rgba is None else shape.rgba[:3]
    if style.robot_rgb is not None and shape.material != "rubber":
        rgb = style.robot_rgb
    base = Material(linear(rgb), 0.07, 55.0)
    return replace(base, mirror=0.03, gloss=14.0) if shape.material == "rubber" else base


def _tone_curve() -> NDArray[np.uint8]:
    """Compute (N,) 8-bit sRGB of linear light in steps of 1/256, with a filmic shoulder against overexposure."""
    x = (np.arange(256 * 8) + 0.5) / 256.0
    y = np.clip((x * (2.51 * x + 0.03)) / (x * (2.43 * x + 0.59) + 0.14), 0.0, 1.0)
    return np.asarray(np.rint(255 * light_to_srgb(y)), np.uint8)
