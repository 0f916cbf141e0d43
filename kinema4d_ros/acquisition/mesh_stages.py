"""Mesh stages of an acquisition: a mesh of each orbit, its alignment with the description, and the link meshes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.acquisition.align import align_mesh, place_camera
from kinema4d_ros.acquisition.backends import FusionBackend, HullBackend, MeshBackend, simplified
from kinema4d_ros.acquisition.drawing import (
    draw_mesh,
    gather_colours,
    label_sheet,
    mesh_scene,
    picture_sheet,
    settle_colours,
)
from kinema4d_ros.acquisition.hull import ColouredMesh, Outlines, find_volume
from kinema4d_ros.acquisition.links import LinkShapes, carve_links, cut_mesh, fuse_links
from kinema4d_ros.acquisition.mesh_files import read_mesh_file, write_mesh_ply
from kinema4d_ros.acquisition.options import FLOOR_WORLD, Acquisition
from kinema4d_ros.acquisition.robot_files import file_name
from kinema4d_ros.acquisition.stages import read_json, write_json
from kinema4d_ros.acquisition.views import View, load_views
from kinema4d_ros.calibration.pictures import reconstruction_picture
from kinema4d_ros.calibration.surfaces import robot_surface
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.io.images import write_image
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot.model import Geometry, TriangleMesh

__all__ = ["load_base_views", "load_links", "make_alignment", "make_links", "make_mesh"]

Array = NDArray[np.float64]

_SIDE_VOXELS = 250
"""Voxels along the longest side of a robot whose unit is unknown."""


def make_mesh(job: Acquisition, poses: Path, masks: Path, folder: Path) -> None:
    """Write `mesh_K.ply` of every orbit, world frame, and a contact sheet from all sides."""
    views = load_views(poses, masks, poses / "depth")
    tiles, labels = [], []
    for orbit in range(len(job.sources)):
        here = [v for v in views if v.orbit == orbit]
        with job.bars(f"mesh {orbit}" if len(job.sources) > 1 else "mesh") as progress:
            mesh = _backend(job, here).reconstruct(here, progress)
        write_mesh_ply(folder / f"mesh_{orbit}.ply", mesh, "world frame")
        cameras = _around(mesh, here[0].camera) if job.own_frame else [v.camera for v in here]
        scene = mesh_scene(mesh)
        for camera in cameras[:: max(1, len(cameras) // 10)]:
            tiles.append(_on_white(scene, camera))
            labels.append(f"{orbit}: {len(mesh.faces)} triangles" if len(tiles) == 1 else "")
    write_image(folder / "sheet.png", picture_sheet(tiles, labels))


def make_alignment(job: Acquisition, mesh: Path, folder: Path) -> None:
    """Write `align.json` with `base_T_world`, scale and residuals; reject a description that does not fit."""
    pictures = []
    start = None if job.own_frame else job.base_T_world
    with job.bars("align") as progress:
        first = None
        for orbit in range(len(job.sources)):
            shape = read_mesh_file(mesh / f"mesh_{orbit}.ply")
            found = align_mesh(
                shape,
                job.robot,
                job.q[orbit],
                base_T_world=start if first is None else first.base_T_world,
                scale=1.0 if first is None else first.scale,
                pairs=job.pairs if first is None else None,
                similarity=job.similarity,
                refine=job.refine and first is None,
                engine=job.engine,
            )
            if first is None:
                first = found
                views = {"base_T_world": found.base_T_world.tolist(), "scale": found.scale}
                if job.own_frame and job.base_T_world is not None:
                    views = {"base_T_world": job.base_T_world.tolist(), "scale": 1.0}
                write_json(folder / "align.json", {**found.numbers, "views": views})
            robot = robot_surface(job.robot, job.q[orbit], 20_000)
            pictures.append(reconstruction_picture(found.reconstruction, found.surface, robot))
            progress(orbit + 1, len(job.sources))
    write_image(folder / "sheet.png", np.concatenate(pictures))


def make_links(job: Acquisition, poses: Path, masks: Path, mesh: Path, align: Path, folder: Path) -> None:
    """Write `LINK.ply` of every link, link frame, with colours, and `links.json` with file names and notes."""
    views = load_base_views(poses, masks, align)
    shapes = LinkShapes.of(job.robot)
    notes: list[str] = []
    if job.external is None:
        floor = _floor_in_base(job, align)
        with job.bars("links") as progress:
            if job.mesher == "open3d":
                meshes = fuse_links(shapes, job.q, views, job.voxel_m, floor=floor, progress=progress)
                notes.append("fused from depth by Open3D: surfaces that no depth image shows are missing")
            else:
                orbit = np.array([v.orbit for v in views])
                meshes = carve_links(
                    shapes,
                    job.q,
                    Outlines.of(views),
                    orbit,
                    job.voxel_m,
                    misses=job.misses,
                    floor=floor,
                    progress=progress,
                )
        meshes = _colour_links(job, shapes, meshes, views)
    else:
        whole = read_mesh_file(mesh / "mesh_0.ply")
        base_T_world, scale = _placed(align)
        in_base = ColouredMesh(apply(base_T_world, scale * whole.vertices), whole.faces, whole.rgb)
        meshes, notes = cut_mesh(in_base, shapes, job.q)
    if job.triangles is not None:
        meshes = {name: simplified(part, job.triangles) for name, part in meshes.items()}
    notes += [f"link '{name}' was not found in the images" for name in shapes.surfaces if name not in meshes]
    taken: set[str] = set()
    files = {name: f"{file_name(name, taken)}.ply" for name in meshes}
    for name, part in meshes.items():
        write_mesh_ply(folder / files[name], part, "link frame, metres")
    write_json(folder / "links.json", {"files": files, "notes": notes})
    write_image(folder / "sheet.png", label_sheet(views, _link_ids(shapes, meshes, job.q, views)))


def load_links(folder: Path) -> tuple[dict[str, ColouredMesh], list[str]]:
    """Load the meshes of a links stage by link name, and its notes."""
    document = read_json(folder / "links.json")
    return {name: read_mesh_file(folder / file) for name, file in document["files"].items()}, list(document["notes"])


def load_base_views(poses: Path, masks: Path, align: Path) -> list[View]:
    """Load the views with cameras in the base frame and depth in metres."""
    base_T_world, scale = _placed(align, "views")
    views = load_views(poses, masks, poses / "depth")
    return [
        replace(
            v,
            camera=place_camera(v.camera, base_T_world, scale),
            depth_m=None if v.depth_m is None else v.depth_m * np.float32(scale),
        )
        for v in views
    ]


def _backend(job: Acquisition, views: list[View]) -> MeshBackend:
    if job.external is not None:
        return job.external
    floor = FLOOR_WORLD if job.floor and job.board is not None else None
    if job.mesher == "open3d":
        return FusionBackend(job.voxel_m, floor)
    voxel = job.voxel_m
    if job.similarity:
        low, high = find_volume(views, Outlines.of(views), misses=job.misses)
        voxel = float((high - low).max()) / _SIDE_VOXELS
    return HullBackend(voxel, job.misses, floor)


def _floor_in_base(job: Acquisition, align: Path) -> Array | None:
    if not job.floor or job.board is None:
        return None
    base_T_world, _ = _placed(align)
    normal = base_T_world[:3, :3] @ FLOOR_WORLD[:3]
    return np.array([*normal, -normal @ base_T_world[:3, 3]])


def _placed(align: Path, what: str = "mesh") -> tuple[Array, float]:
    """Read `base_T_world` and the scale of the mesh or of the views; they differ for an external mesh."""
    numbers = read_json(align / "align.json")
    numbers = numbers if what == "mesh" else numbers["views"]
    return np.array(numbers["base_T_world"]), float(numbers["scale"])


def _colour_links(
    job: Acquisition, shapes: LinkShapes, meshes: dict[str, ColouredMesh], views: list[View]
) -> dict[str, ColouredMesh]:
    """Colour the links from all configurations; they are assembled as in the images, to model occlusion."""
    poses = shapes.poses(job.q)
    sizes = [len(m.vertices) for m in meshes.values()]
    starts = np.cumsum([0, *sizes])
    faces = np.concatenate([m.faces + s for m, s in zip(meshes.values(), starts, strict=False)])
    total, weight = np.zeros((starts[-1], 3)), np.zeros(starts[-1])
    with job.bars("colours") as progress:
        for orbit in range(len(job.q)):
            vertices = np.concatenate([apply(poses[name][orbit], m.vertices) for name, m in meshes.items()])
            here = [v for v in views if v.orbit == orbit]
            colours, counts = gather_colours(ColouredMesh(vertices, faces), here, slack=2 * job.voxel_m)
            total += colours
            weight += counts
            progress(orbit + 1, len(job.q))
    parts = {}
    for (name, m), start, end in zip(meshes.items(), starts, starts[1:], strict=False):
        parts[name] = settle_colours(m, total[start:end], weight[start:end])
    return parts


def _link_ids(
    shapes: LinkShapes, meshes: dict[str, ColouredMesh], q: Array, views: list[View]
) -> list[NDArray[np.uint8]]:
    names = list(meshes)
    parts = [
        (i, Geometry("mesh", np.eye(4), TriangleMesh(meshes[n].vertices, meshes[n].faces.astype(np.int32))))
        for i, n in enumerate(names)
    ]
    scene, poses = Scene(parts, len(names)), shapes.poses(q)
    return [
        render_poses(scene, np.stack([poses[n][v.orbit] for n in names])[None], v.camera).link_ids[0] for v in views
    ]


def _on_white(scene: Scene, camera: PinholeCamera) -> NDArray[np.uint8]:
    drawn = draw_mesh(scene, camera, rgb=True)
    if drawn.rgb is None:
        raise TypeError("rgb=True returned no colours")
    return np.where(drawn.mask[0][..., None], drawn.rgb[0], np.uint8(245))


def _around(mesh: ColouredMesh, like: PinholeCamera) -> list[PinholeCamera]:
    """Place ten cameras around a mesh that has its own frame, in which the up direction is unknown."""
    low, high = mesh.vertices.min(axis=0), mesh.vertices.max(axis=0)
    centre, size = (low + high) / 2, float(np.linalg.norm(high - low))
    cameras = []
    for angle in np.linspace(0, 2 * np.pi, 10, endpoint=False):
        eye = centre + 1.6 * size * np.array([np.cos(angle), np.sin(angle), 0.5])
        cameras.append(PinholeCamera.look_at(eye, centre, width=like.width, height=like.height, fov_y_deg=40.0))
    return cameras
