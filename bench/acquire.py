"""Accuracy of robot acquisition, on simulated orbit videos of the lab's arm with ground truth.

    python bench/acquire.py --data DIR           renders the orbits into DIR (once: minutes), then measures
    python bench/acquire.py --data DIR --quick   few frames, small images: a smoke test
    python bench/acquire.py --data DIR --only masks peer

The lab's YAM stands beside a ChArUco board; a hand-held camera with lens distortion, focus blur and noise spirals
around it, a quarter of the frames with motion blur. The given description has only the YAM's collision shapes (boxes
and cylinders). Cases:

exact: exact masks, and the YAM's own shapes as the description: the error of the method itself.
masks: masks with outline errors of 0.7 px, as from a good segmenter; one joint configuration.
two: the same from two joint configurations (two videos).
classical: no masks given: GrabCut, prompted by the description, then by the consensus of the masks.
peer: carving only, against Open3D's `VoxelGrid.carve_silhouette`, with the same masks, cameras and 4 mm voxels.

Metrics: IoU of the acquired robot with the true silhouette in the used views, in held-out views, and in another joint
configuration; Chamfer distance (half the sum of both means): from its surface to the true one, and from the part of
the true one that is visible from above the table to its surface. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "test"))

from support.orbits import rough_description
from support.seen_robot import wobble

from kinema4d_ros.acquisition.acquire import acquire, redraw
from kinema4d_ros.acquisition.drawing import coverage, draw_mesh, mesh_scene
from kinema4d_ros.acquisition.hull import Grid, Outlines, carve, find_volume, surface_net
from kinema4d_ros.acquisition.options import Acquisition
from kinema4d_ros.acquisition.synthetic import ORBIT_BOARD, Orbit, board_on_table, orbit_cameras, write_orbit_video
from kinema4d_ros.acquisition.views import View
from kinema4d_ros.calibration.camera_files import CameraInfo, read_camera_info, write_camera_info
from kinema4d_ros.calibration.surfaces import robot_surface
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.transforms import apply
from kinema4d_ros.evaluation.clouds import cloud_distance
from kinema4d_ros.io.images import write_image
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot import Robot
from kinema4d_ros.segmentation.classical import ClassicalSegmenter

Q = np.array([[0.35, 1.3, 1.5, -0.6, 0.3, 0.3, 0.03], [-0.5, 0.9, 0.9, 0.5, -0.5, -0.8, 0.01]])
CASES = ("exact", "masks", "two", "classical", "peer")
OTHER = np.array([0.1, 1.8, 2.0, -1.0, 0.5, 0.8, 0.045])


def film(folder: Path, robot: Robot, quick: bool, orbits: int) -> None:
    """Render videos, ground truth and intrinsics of the orbits, unless they exist."""
    size = {"width": 640, "height": 480} if quick else {}
    folder.mkdir(parents=True, exist_ok=True)
    write_camera_info(folder / "camera.yaml", CameraInfo.of(orbit_cameras(1, **size)[0]))
    for k, q in enumerate(Q[:orbits]):
        if (folder / f"held{k}" / "truth.npz").is_file():
            continue
        orbit = Orbit(robot, q, seed=k, texture_pixels=2048)
        frames = list(orbit.film(orbit_cameras(24 if quick else (72, 40)[k], seed=k, **size)))
        write_orbit_video(folder / f"orbit{k}.mp4", frames)
        held = [orbit.take(c) for c in held_cameras(k, 4 if quick else 12, **size)]
        for name, some in ((f"orbit{k}", frames), (f"held{k}", held)):
            (folder / name).mkdir(exist_ok=True)
            np.savez(
                folder / name / "truth.npz",
                masks=np.packbits(np.stack([f.mask for f in some]), axis=-1),
                poses=np.stack([f.camera.base_T_camera for f in some]),
            )
        print(f"rendered orbit {k}", flush=True)


def held_cameras(k: int, count: int, **size: int) -> list[PinholeCamera]:
    return orbit_cameras(count, seed=100 + k, turns=1.3, elevation_deg=(15, 70), **size)


def truth_of(folder: Path, camera: PinholeCamera) -> tuple[np.ndarray, np.ndarray]:
    data = np.load(folder / "truth.npz")
    return np.unpackbits(data["masks"], axis=-1)[..., : camera.width].astype(bool), data["poses"]


def held_views(folder: Path, camera: PinholeCamera) -> list[View]:
    masks, poses = truth_of(folder, camera)
    return [exact_view(str(i), camera.posed(p), m) for i, (p, m) in enumerate(zip(poses, masks, strict=True))]


def exact_view(name: str, lens: PinholeCamera, mask: np.ndarray) -> View:
    straight = lens.rectify(mask.astype(np.uint8) * 255) > 127
    return View(name, 0, np.zeros((*mask.shape, 3), np.uint8), lens.rectified(), straight)


def seen_surface(robot: Robot, q: np.ndarray) -> np.ndarray:
    """Sample points of the robot's surface that are visible from above the table."""
    points = robot_surface(robot, q, 40_000).points
    scene, poses = Scene.from_robot(robot), forward_all(robot, q[None])
    seen = np.zeros(len(points), bool)
    for camera in orbit_cameras(60, width=640, height=480, turns=6, elevation_deg=(2, 88), distortion=(), seed=7):
        depth = render_poses(scene, poses, camera).xyz[0, ..., 2]
        p = apply(camera.camera_T_base, points)
        column, row = np.floor(camera.project(p)).astype(int).T
        inside = (column >= 0) & (row >= 0) & (column < 640) & (row < 480)
        at = np.flatnonzero(inside)
        seen[at[p[at, 2] < depth[row[at], column[at]] + 0.002]] = True
    return points[seen]


def drawn_views(robot: Robot, q: np.ndarray, cameras: list[PinholeCamera]) -> list[View]:
    """Make views with exact masks."""
    scene, poses = Scene.from_robot(robot), forward_all(robot, q[None])
    black = np.zeros((cameras[0].height, cameras[0].width, 3), np.uint8)
    return [View(str(i), 0, black, c, render_poses(scene, poses, c).mask[0]) for i, c in enumerate(cameras)]


def spread(iou: np.ndarray) -> dict[str, Any]:
    return {"mean": float(iou.mean()), "least": float(iou.min()), "views": len(iou)}


def measure(made: Robot, robot: Robot, data: Path, camera: PinholeCamera, orbits: int) -> dict[str, Any]:
    held = []
    for k in range(orbits):
        views = held_views(data / f"held{k}", camera)
        held.append(coverage(redraw(made, Q[k][None], views), views))
    eyes = orbit_cameras(10, width=camera.width, height=camera.height, seed=50, distortion=())
    other = drawn_views(robot, OTHER, eyes)
    found = cloud_distance(robot_surface(made, Q[0], 40_000).points, robot_surface(robot, Q[0], 80_000).points)
    back = cloud_distance(seen_surface(robot, Q[0]), robot_surface(made, Q[0], 80_000).points)
    return {
        "held_out": spread(np.concatenate(held)),
        "other_configuration": spread(coverage(redraw(made, OTHER[None], other), other)),
        "chamfer_mm": 1e3 * (found.accuracy + back.accuracy) / 2,
        "accuracy_mm": 1e3 * found.accuracy,
        "completeness_mm": 1e3 * back.accuracy,
    }


def case(name: str, data: Path, robot: Robot, work: Path, quick: bool) -> dict[str, Any]:
    camera = read_camera_info(data / "camera.yaml").camera(np.eye(4))
    orbits = 2 if name == "two" else 1
    given = robot if name == "exact" else Robot.load(rough_description(robot, work / "rough"))
    options: dict[str, Any] = {}
    if name == "classical":
        near = ClassicalSegmenter(margin_px=0.006 * camera.width)
        options = {"segmenter": ClassicalSegmenter(), "again": near, "misses": 1}
    else:
        rng = np.random.default_rng(5)
        for k in range(orbits):
            prefix = "" if orbits == 1 else f"{k}_"
            for i, mask in enumerate(truth_of(data / f"orbit{k}", camera)[0]):
                wandering = wobble(mask, rng, 0.0 if name == "exact" else 0.7, 0.0)
                picture = np.repeat(wandering[..., None], 3, axis=2).astype(np.uint8) * 255
                write_image(work / f"masks_{name}" / f"{prefix}{i:06d}.png", picture)
        options = {"masks": work / f"masks_{name}"}
    job = Acquisition(
        sources=tuple(data / f"orbit{k}.mp4" for k in range(orbits)),
        robot=given,
        q=Q[:orbits],
        out=work / name,
        camera=camera,
        board=ORBIT_BOARD,
        base_T_world=board_on_table(),
        voxel_m=0.006 if quick else 0.002,
        views=12 if quick else 20,
        say=lambda line: print(f"{name}: {line}", flush=True),
        **options,
    )
    started = time.process_time()
    found = acquire(job)
    spent = time.process_time() - started
    report = found.report
    out = {
        "views": len(report["views"]),
        "iou_masks": {"mean": report["iou_mean"], "least": report["iou_least"]},
        "links": len(report["links"]),
        "alignment_mm": report["alignment"]["mm"],
        "cpu_s": spent,
        **measure(Robot.load(found.urdf), robot, data, camera, orbits),
    }
    print(name, out, flush=True)
    return out


def peer(robot: Robot, quick: bool) -> dict[str, Any]:
    """Carve the same masks, exact cameras and voxels with Open3D and with ours, one thread each."""
    import open3d as o3d

    voxel = 0.008 if quick else 0.004
    views = drawn_views(robot, Q[0], orbit_cameras(20, width=640, height=480, distortion=()))
    # A block around the arm, the same for both.
    low, high = find_volume(views, Outlines.of(views))
    grid = Grid.over(low, high, voxel)
    ours_s, theirs_s = [], []
    for _ in range(1 if quick else 3):
        started = time.process_time()
        values = carve(Outlines.of(views), grid)
        ours_s.append(time.process_time() - started)
        started = time.process_time()
        size = [n * voxel for n in grid.shape]
        block = o3d.geometry.VoxelGrid.create_dense(grid.origin - voxel / 2, np.zeros(3), voxel, *size)
        for view in views:
            K = view.camera.K_opencv
            eye = o3d.camera.PinholeCameraParameters()
            eye.intrinsic = o3d.camera.PinholeCameraIntrinsic(640, 480, K[0, 0], K[1, 1], K[0, 2], K[1, 2])
            eye.extrinsic = view.camera.camera_T_base
            block.carve_silhouette(o3d.geometry.Image(view.robot.astype(np.float32)), eye, True)
        theirs_s.append(time.process_time() - started)
    occupied = np.zeros(grid.shape, bool)
    index = np.array([v.grid_index for v in block.get_voxels()])
    occupied[tuple(index.T)] = True
    results = {}
    true = seen_surface(robot, Q[0])
    whole = robot_surface(robot, Q[0], 80_000).points
    for name, mesh in (
        ("ours", surface_net(values, grid)),
        ("open3d", surface_net(np.where(occupied, 1.0, -1.0).astype(np.float32), grid)),
    ):
        drawn = [draw_mesh(mesh_scene(mesh), v.camera).mask[0] for v in views]
        there, back = (cloud_distance(*pair).accuracy for pair in ((mesh.vertices, whole), (true, mesh.vertices)))
        results[name] = {"iou": float(coverage(drawn, views).mean()), "chamfer_mm": 500 * (there + back)}
    results["ours"]["cpu_s"], results["open3d"]["cpu_s"] = min(ours_s), min(theirs_s)
    out = {
        "voxels": int(np.prod(grid.shape)),
        "agree": float((occupied == (values > 0)).mean()),
        **results,
        "time_ratio": min(theirs_s) / min(ours_s),
        "chamfer_ratio": results["open3d"]["chamfer_mm"] / results["ours"]["chamfer_mm"],
    }
    print("peer", out, flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder for the rendered orbits")
    parser.add_argument("--work", type=Path, help="folder for the stages (default: a temporary one)")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", choices=CASES)
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    robot = Robot.load("yam")
    chosen = arguments.only or list(CASES)
    results: dict[str, Any] = {}
    if set(chosen) != {"peer"}:
        film(arguments.data, robot, arguments.quick, 2 if "two" in chosen else 1)
    with tempfile.TemporaryDirectory() as scratch:
        work = arguments.work or Path(scratch)
        for name in chosen:
            if name == "peer":
                results[name] = peer(robot, arguments.quick)
            else:
                results[name] = case(name, arguments.data, robot, work, arguments.quick)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
