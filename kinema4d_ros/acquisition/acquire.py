"""Acquisition pipeline: resumable stages from orbit videos to a robot that `Robot.load` opens."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.acquisition.align import with_shapes
from kinema4d_ros.acquisition.drawing import cover_sheet, coverage
from kinema4d_ros.acquisition.mesh_stages import load_base_views, load_links, make_alignment, make_links, make_mesh
from kinema4d_ros.acquisition.options import Acquisition
from kinema4d_ros.acquisition.robot_files import write_robot
from kinema4d_ros.acquisition.stages import StageRunner, hash_files, read_json, write_json
from kinema4d_ros.acquisition.view_stages import make_frames, make_masks, make_poses
from kinema4d_ros.acquisition.views import View
from kinema4d_ros.calibration.recon import choose_engine
from kinema4d_ros.calibration.surfaces import load_open3d
from kinema4d_ros.io.images import write_image
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot.model import Robot

__all__ = ["Acquired", "acquire", "redraw"]

POOR_IOU = 0.85
"""Below this mean IoU of a configuration's views, its joint positions or the URDF's joint origins do not fit."""


@dataclass(frozen=True, eq=False)
class Acquired:
    """Result of an acquisition.

    Attributes:
        urdf: path of the URDF, for `Robot.load`.
        report: contents of `robot/report.json`: IoU of every view, alignment, notes.
        made: stages that this run executed; the others were reused.
    """

    urdf: Path
    report: dict[str, Any]
    made: tuple[str, ...]


def acquire(job: Acquisition) -> Acquired:
    """Run the acquisition; finished stages in `job.out` are reused."""
    given = job.robot
    # Packages that are missing are reported before the work starts.
    engine = choose_engine(job.engine, similarity=job.similarity).name
    if job.mesher == "open3d" or job.triangles is not None:
        load_open3d("--mesher open3d and --triangles", "--mesher hull without --triangles")
    job = replace(job, robot=with_shapes(given))
    stages = StageRunner(job.out, job.say)
    seen: dict[str, Any] = {
        "sources": [hash_files([p]) for p in job.sources],
        "poses": _hash(job.poses),
        "board": _text(job.board),
    }
    if job.camera is not None:
        c = job.camera
        seen["camera"] = [c.width, c.height, c.K.tolist(), list(c.distortion), c.distortion_model]
    frames = stages.run(
        1, "frames", {**seen, "views": job.views, "max_blur_px": job.max_blur_px}, (), lambda at: make_frames(job, at)
    )
    poses = stages.run(2, "poses", {"depth": _hash(job.depth)}, ("frames",), lambda at: make_poses(job, frames, at))
    told: dict[str, Any] = {"masks": _hash(job.masks)}
    if job.segmenter is not None:
        told = {
            "segmenter": f"{job.segmenter.name} {job.segmenter_options}",
            "rounds": job.rounds if job.again else 0,
            "floor": job.floor,
            "text": job.text,
            "similarity": job.similarity,
            **_place(job),
        }
    masks = stages.run(3, "masks", told, ("poses",), lambda at: make_masks(job, poses, at))
    external = None if job.external is None else repr(job.external)
    carving = {"voxel_m": job.voxel_m, "misses": job.misses, "floor": job.floor, "external": external}
    mesh = stages.run(
        4,
        "mesh",
        {**carving, "similarity": job.similarity, **_unless(mesher=(job.mesher, "hull"))},
        ("poses", "masks"),
        lambda at: make_mesh(job, poses, masks, at),
    )
    align = stages.run(
        5,
        "align",
        {**_place(job), "similarity": job.similarity, "refine": job.refine, **_unless(engine=(engine, "own"))},
        ("mesh",),
        lambda at: make_alignment(job, mesh, at),
    )
    links = stages.run(
        6,
        "links",
        _unless(triangles=(job.triangles, None)),
        ("masks", "mesh", "align"),
        lambda at: make_links(job, poses, masks, mesh, align, at),
    )
    robot = stages.run(
        7,
        "robot",
        {},
        ("links",),
        lambda at: _make_robot(job, given, load_base_views(poses, masks, align), links, align, at),
        folder=job.out / "robot",
    )
    return Acquired(next((robot / "urdf").glob("*.urdf")), read_json(robot / "report.json"), tuple(stages.made))


def redraw(robot: Robot, q: NDArray[np.float64], views: list[View]) -> list[NDArray[np.bool_]]:
    """Render robot silhouettes (H, W) in views with cameras in its base frame; q is (K, J), one row per orbit."""
    scene, poses = Scene.from_robot(robot), forward_all(robot, q)
    return [render_poses(scene, poses[v.orbit][None], v.camera).mask[0] for v in views]


def _make_robot(job: Acquisition, given: Robot, views: list[View], links: Path, align: Path, folder: Path) -> None:
    meshes, notes = load_links(links)
    with job.bars("robot") as progress:
        made = Robot.load(write_robot(folder, given, meshes))
        progress(1, 2)
        drawn = redraw(made, job.q, views)
        iou = coverage(drawn, views)
        progress(2, 2)
    orbits = np.array([v.orbit for v in views])
    by_orbit = [float(iou[orbits == k].mean()) for k in range(len(job.q))]
    notes += [
        f"orbit {k}: IoU {value:.3f}; its joint positions or the joint origins in the URDF do not fit"
        for k, value in enumerate(by_orbit)
        if value < POOR_IOU
    ]
    if len(job.q) == 1:
        notes.append("only one joint configuration: the joint origins were not checked; add a second video")
    write_json(
        folder / "report.json",
        {
            "iou_mean": float(iou.mean()),
            "iou_least": float(iou.min()),
            "iou_by_orbit": by_orbit,
            "views": [{"name": v.name, "orbit": v.orbit, "iou": float(i)} for v, i in zip(views, iou, strict=True)],
            "links": {name: len(m.faces) for name, m in meshes.items()},
            "alignment": read_json(align / "align.json"),
            "notes": notes,
        },
    )
    write_image(folder / "sheet.png", cover_sheet(views, drawn, iou.tolist()))


def _place(job: Acquisition) -> dict[str, Any]:
    """Collect the options that determine the pose and joint positions of the robot."""
    pairs = None if job.pairs is None else [p.tolist() for p in job.pairs]
    start = None if job.base_T_world is None else job.base_T_world.tolist()
    return {"robot": _robot_hash(job.robot), "q": job.q.tolist(), "base_T_world": start, "pairs": pairs}


def _unless(**options: tuple[Any, Any]) -> dict[str, Any]:
    """Collect the options (value, default) that are not at their default, so that older stages stay valid."""
    return {name: value for name, (value, default) in options.items() if value != default}


def _robot_hash(robot: Robot) -> str:
    total = hashlib.sha256(json.dumps(robot.urdf).encode())
    for link in robot.links:
        for shape in (*link.visuals, *link.collisions):
            total.update(shape.mesh.vertices.tobytes())
    return total.hexdigest()


def _hash(path: Path | None) -> str | None:
    return None if path is None else hash_files([path])


def _text(board: Any) -> str | None:
    return None if board is None else str(board.text)
