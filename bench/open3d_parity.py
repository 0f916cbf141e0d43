"""Our registration, depth fusion and mesh code against Open3D's, step by step, on data with ground truth.

    python bench/open3d_parity.py            every step (15 minutes)
    python bench/open3d_parity.py --quick    one seed each: a smoke test
    python bench/open3d_parity.py --only refine search

refine: ICP from a start 20 mm and 5 degrees off. `whole`: the YAM's surface with 1 mm of noise, 5 % of the points on
    the table; `partial`: the half that faces one side, a third of the points on the table; `hull`: the hull of 20
    silhouettes, on a description by collision shapes. Peers: Open3D's point-to-plane ICP with Tukey's loss (what
    `--engine open3d` runs) and its generalized ICP. Coloured ICP does not apply: descriptions have no colours.
search: the same scans without a start. Peer: FPFH features and RANSAC. Both are refined by our ICP.
fuse: 20 depth images of 640 x 480, 2 mm voxels; exact, or noisy like a structured-light camera's (a standard deviation
    of 1.2 mm + 1.9 mm/m2 (z - 0.4 m)2 along the axis and of half a pixel across it, masks off by 0.7 px). Peer:
    Open3D's VoxelBlockGrid (`--mesher open3d`).
links: the same, cut into links with the rough description; IoU in 12 views that were not used.
clean: triangulation of a field, removal of small pieces, normals. Peers: Open3D's isosurfaces, connected triangles and
    normals. Open3D alone: reduction to a tenth of the triangles, Taubin smoothing.

Errors of poses are root mean square distances of the robot's points. `accuracy` is the mean distance from the new
surface to the true one, `completeness` from the part of the true one that is visible from above the table to the new
one, both to triangles. Times are CPU seconds of all threads, medians over the seeds; compare them within one run only.
Ratios are Open3D over ours: above 1 ours is better. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "test"))

import cv2
import numpy as np
import open3d as o3d
from acquire import Q, drawn_views, seen_surface
from scipy.spatial.transform import Rotation
from support.orbits import rough_description
from support.seen_robot import random_joints, wobble

from kinema4d_ros.acquisition.align import with_shapes
from kinema4d_ros.acquisition.backends import fuse_depth, measured_pixels, simplified
from kinema4d_ros.acquisition.drawing import coverage, draw_mesh, mesh_scene
from kinema4d_ros.acquisition.hull import (
    ColouredMesh,
    Grid,
    Outlines,
    carve,
    drop_crumbs,
    find_volume,
    surface_net,
    vertex_normals,
    visual_hull,
)
from kinema4d_ros.acquisition.links import LinkShapes, carve_links, fuse_links
from kinema4d_ros.acquisition.synthetic import orbit_cameras
from kinema4d_ros.acquisition.views import View
from kinema4d_ros.calibration.recon import choose_engine, closest_points, search_alignment
from kinema4d_ros.calibration.surfaces import Surface, robot_surface, sample_surface
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.transforms import apply, from_rpy, invert
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot import Robot

STEPS = ("refine", "search", "fuse", "links", "clean")
KINDS = ("whole", "partial", "hull")
FLOOR = np.array([0.0, 0.0, 1.0, 0.0])
FOUND_MM = {"whole": 3.0, "partial": 3.0, "hull": 15.0}


def error_mm(pose: np.ndarray, truth: np.ndarray, points: np.ndarray) -> float:
    apart = apply(pose, points) - apply(truth, points)
    return 1e3 * float(np.sqrt((apart**2).sum(axis=1).mean()))


def scan(kind: str, seed: int, robot: Robot, rough: Robot) -> tuple[Surface, Surface, np.ndarray, np.ndarray]:
    """Make a scan, the target it belongs on, the true pose, and points of the robot in the scan's frame."""
    rng = np.random.default_rng([seed, 43])
    q = random_joints(robot, rng, 1)[0]
    truth = from_rpy(rng.uniform(-np.pi, np.pi, 3), rng.uniform(-1, 1, 3))
    exact = robot_surface(robot, q, 12_000, seed=seed + 1)
    if kind == "hull":
        views = drawn_views(robot, q, orbit_cameras(20, width=640, height=480, distortion=(), seed=seed))
        hull = visual_hull(views, 0.004, floor=FLOOR)
        found, target = sample_surface(hull.vertices, hull.faces, 12_000), robot_surface(rough, q)
        points, normals = found.points, found.normals
    else:
        side = rng.normal(size=3)
        keep = exact.normals @ side > 0 if kind == "partial" else np.ones(len(exact.points), bool)
        some = exact.points[keep] + rng.normal(0, 1e-3, (keep.sum(), 3))
        table = rng.uniform([-0.3, -0.3, -0.01], [0.5, 0.3, 0.0], (3000 if kind == "partial" else 600, 3))
        points = np.concatenate([some, table])
        normals = np.concatenate([exact.normals[keep], np.tile([0.0, 0.0, 1.0], (len(table), 1))])
        target = robot_surface(robot, q)
    back = invert(truth)
    return Surface(apply(back, points), normals @ back[:3, :3].T), target, truth, apply(back, exact.points)


def pushed(truth: np.ndarray, middle: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Move a pose by 20 mm and 5 degrees about the robot's middle, in random directions."""
    axis, way = (v / np.linalg.norm(v) for v in rng.normal(size=(2, 3)))
    change = np.eye(4)
    change[:3, :3] = Rotation.from_rotvec(np.radians(5) * axis).as_matrix()
    change[:3, 3] = middle - change[:3, :3] @ middle + 0.02 * way
    return change @ truth


def cloud(surface: Surface) -> Any:
    made = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(surface.points))
    made.normals = o3d.utility.Vector3dVector(surface.normals)
    return made


def generalized(surface: Surface, target: Surface, pose: np.ndarray) -> np.ndarray:
    registration, clouds = o3d.pipelines.registration, (cloud(surface), cloud(target))
    for reach in (0.05, 0.025, 0.01):
        stop = registration.ICPConvergenceCriteria(1e-9, 1e-9, 30)
        method = registration.TransformationEstimationForGeneralizedICP()
        pose = registration.registration_generalized_icp(*clouds, reach, pose, method, stop).transformation
    return np.array(pose)


def fpfh(surface: Surface, target: Surface, voxel: float = 0.012) -> np.ndarray:
    """Search the pose with Open3D's features and RANSAC."""
    registration = o3d.pipelines.registration
    thin = [cloud(s).voxel_down_sample(voxel) for s in (surface, target)]
    around = o3d.geometry.KDTreeSearchParamHybrid(radius=5 * voxel, max_nn=100)
    features = [registration.compute_fpfh_feature(c, around) for c in thin]
    checks = [
        registration.CorrespondenceCheckerBasedOnEdgeLength(0.9),
        registration.CorrespondenceCheckerBasedOnDistance(1.5 * voxel),
    ]
    found = registration.registration_ransac_based_on_feature_matching(
        *thin, *features, False, 1.5 * voxel, registration.TransformationEstimationPointToPoint(False), 3, checks,
        registration.RANSACConvergenceCriteria(400_000, 0.999),
    )  # fmt: skip
    return np.array(found.transformation)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.process_time()
    made = work()
    return made, time.process_time() - started


def pose_figures(rows: list[tuple[float, float]], limit_mm: float) -> dict[str, float]:
    mm, cpu_s = np.array(rows).T
    found = int((mm < limit_mm).sum())
    return {
        "median_mm": float(np.median(mm)), "worst_mm": float(mm.max()), "found": found, "cpu_s": float(np.median(cpu_s))
    }  # fmt: skip


def compared(rows: dict[str, list[tuple[float, float]]], limit_mm: float) -> dict[str, Any]:
    figures: dict[str, Any] = {name: pose_figures(row, limit_mm) for name, row in rows.items()}
    ours, peer = figures["ours"], figures["open3d"]
    figures["mm_ratio"] = peer["median_mm"] / ours["median_mm"]
    figures["cpu_ratio"] = peer["cpu_s"] / ours["cpu_s"]
    return figures


def refine(robot: Robot, rough: Robot, quick: bool) -> dict[str, Any]:
    engine = choose_engine("open3d")
    results: dict[str, Any] = {"seeds": 1 if quick else 20}
    for kind in KINDS:
        rows: dict[str, list[tuple[float, float]]] = {}
        for seed in range(results["seeds"]):
            surface, target, truth, points = scan(kind, seed, robot, rough)
            start = pushed(truth, apply(truth, points.mean(axis=0)), np.random.default_rng([seed, 44]))
            ways: dict[str, Callable[[], np.ndarray]] = {
                "ours": lambda: closest_points(surface, target, start).pose,  # noqa: B023 - called at once
                "open3d": lambda: closest_points(surface, target, start, engine=engine).pose,  # noqa: B023
                "open3d_generalized": lambda: generalized(surface, target, start),  # noqa: B023
            }
            for name, way in ways.items():
                pose, cpu_s = timed(way)
                rows.setdefault(name, []).append((error_mm(pose, truth, points), cpu_s))
        results[kind] = compared(rows, FOUND_MM[kind])
        print("refine", kind, rounded(results[kind]), flush=True)
    return results


def search(robot: Robot, rough: Robot, quick: bool) -> dict[str, Any]:
    o3d.utility.random.seed(0)
    results: dict[str, Any] = {"seeds": 1 if quick else 12}
    for kind in KINDS[:1] if quick else KINDS:
        rows: dict[str, list[tuple[float, float]]] = {}
        for seed in range(results["seeds"]):
            surface, target, truth, points = scan(kind, seed, robot, rough)
            ways: dict[str, Callable[[], np.ndarray]] = {
                "ours": lambda: search_alignment(surface, target).base_T_recon,  # noqa: B023 - called at once
                "open3d": lambda: fpfh(surface, target),  # noqa: B023
            }
            for name, way in ways.items():
                start, cpu_s = timed(way)
                pose = closest_points(surface, target, start).pose
                rows.setdefault(name, []).append((error_mm(pose, truth, points), cpu_s))
        results[kind] = compared(rows, FOUND_MM[kind])
        print("search", kind, rounded(results[kind]), flush=True)
    return results


def table_depth(camera: PinholeCamera) -> np.ndarray:
    """Compute the depth (H, W) of the table, z = 0."""
    v, u = np.mgrid[0 : camera.height, 0 : camera.width] + 0.5
    rays = camera.unproject(np.stack([u, v], axis=-1).reshape(-1, 2), 1.0) @ camera.base_T_camera[:3, :3].T
    depth = -camera.base_T_camera[2, 3] / rays[:, 2]
    return np.where(depth > 0, depth, np.nan).reshape(u.shape)


def depth_views(robot: Robot, q: np.ndarray, seed: int, noisy: bool, count: int) -> list[View]:
    """Render masks and depth of the robot on a table; `noisy` as in the module's description."""
    scene, poses = Scene.from_robot(robot), forward_all(robot, q[None])
    rng, views = np.random.default_rng([seed, 61]), []
    for i, camera in enumerate(orbit_cameras(count, width=640, height=480, distortion=(), seed=seed)):
        drawn = render_poses(scene, poses, camera)
        mask = drawn.mask[0]
        depth = np.where(mask, drawn.xyz[0, ..., 2], table_depth(camera)).astype(np.float32)
        if noisy:
            v, u = np.mgrid[0:480, 0:640] + rng.normal(0, 0.5, (2, 480, 640))
            nearest = (u.astype(np.float32), v.astype(np.float32), cv2.INTER_NEAREST)
            depth = cv2.remap(depth, *nearest, borderMode=cv2.BORDER_REPLICATE)
            depth = depth + rng.normal(0, 1, depth.shape) * (0.0012 + 0.0019 * (depth - 0.4) ** 2)
            depth = np.rint(1e4 * depth).astype(np.float32) * np.float32(1e-4)
            mask = wobble(mask, rng, 0.7, 0.0)
        views.append(View(str(i), 0, np.zeros((480, 640, 3), np.uint8), camera, mask, depth))
    return views


def distances_to(mesh: ColouredMesh, points: np.ndarray) -> np.ndarray:
    scene = o3d.t.geometry.RaycastingScene()
    scene.add_triangles(
        o3d.core.Tensor(mesh.vertices.astype(np.float32)), o3d.core.Tensor(mesh.faces.astype(np.uint32))
    )
    return np.asarray(scene.compute_distance(o3d.core.Tensor(points.astype(np.float32))).numpy())


def whole_mesh(robot: Robot, q: np.ndarray) -> ColouredMesh:
    vertices, faces, start = [], [], 0
    for link, pose in zip(robot.links, forward_all(robot, q[None])[0], strict=True):
        for shape in link.visuals:
            vertices.append(apply(pose @ shape.link_T_geometry, shape.mesh.vertices))
            faces.append(shape.mesh.faces + start)
            start += len(shape.mesh.vertices)
    return ColouredMesh(np.concatenate(vertices), np.concatenate(faces).astype(np.int64))


def surface_error(mesh: ColouredMesh, true: ColouredMesh, seen: np.ndarray) -> dict[str, float]:
    there = 1e3 * distances_to(true, sample_surface(mesh.vertices, mesh.faces, 40_000).points)
    back = 1e3 * distances_to(mesh, seen)
    return {
        "accuracy_mm": float(there.mean()),
        "accuracy_95_mm": float(np.percentile(there, 95)),
        "completeness_mm": float(back.mean()),
        "completeness_95_mm": float(np.percentile(back, 95)),
        "chamfer_mm": float(there.mean() + back.mean()) / 2,
        "triangles": len(mesh.faces),
    }


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: float(np.median([row[key] for row in rows])) for key in rows[0]}


def ratios(results: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        results[f"{name.removesuffix('_mm')}_ratio"] = results["open3d"][name] / results["ours"][name]
    return results


def fused(views: list[View], voxel: float) -> ColouredMesh:
    """Fuse as FusionBackend does, without its colours."""
    shots = []
    for view in views:
        row, column, _ = measured_pixels(view, FLOOR, voxel)
        pixels = np.zeros(view.robot.shape, bool)
        pixels[row, column] = True
        shots.append((view, pixels, np.eye(4)))
    return fuse_depth(shots, voxel)


def fuse(robot: Robot, rough: Robot, quick: bool) -> dict[str, Any]:
    voxel, seeds = (0.006, 1) if quick else (0.002, 3)
    true, seen = whole_mesh(robot, Q[0]), seen_surface(robot, Q[0])
    results: dict[str, Any] = {"seeds": seeds, "voxel_m": voxel}
    for noise in ("exact", "noisy"):
        rows: dict[str, list[dict[str, float]]] = {"ours": [], "open3d": []}
        for seed in range(seeds):
            views = depth_views(robot, Q[0], seed, noise == "noisy", 12 if quick else 20)
            visual_hull(views, 0.02)  # compiles
            for name, work in (
                ("ours", lambda: visual_hull(views, voxel, floor=FLOOR)),  # noqa: B023 - called at once
                ("open3d", lambda: fused(views, voxel)),  # noqa: B023
            ):
                mesh, cpu_s = timed(work)
                rows[name].append({**surface_error(mesh, true, seen), "cpu_s": cpu_s})
        figures = {name: medians(row) for name, row in rows.items()}
        results[noise] = ratios(figures, "accuracy_mm", "completeness_mm", "chamfer_mm", "cpu_s")
        print("fuse", noise, rounded(results[noise]), flush=True)
    return results


def links(robot: Robot, rough: Robot, quick: bool) -> dict[str, Any]:
    voxel, seeds = (0.006, 1) if quick else (0.002, 2)
    true, seen = whole_mesh(robot, Q[0]), seen_surface(robot, Q[0])
    eyes = orbit_cameras(12, width=640, height=480, distortion=(), seed=100, turns=1.3, elevation_deg=(15, 70))
    held = drawn_views(robot, Q[0], eyes)
    shapes = LinkShapes.of(rough)
    poses = shapes.poses(Q)
    results: dict[str, Any] = {"seeds": seeds, "voxel_m": voxel}
    for noise in ("noisy",) if quick else ("exact", "noisy"):
        for orbits in (1,) if quick else (1, 2):
            rows: dict[str, list[dict[str, float]]] = {"ours": [], "open3d": []}
            for seed in range(seeds):
                views = [
                    replace(v, orbit=k)
                    for k in range(orbits)
                    for v in depth_views(robot, Q[k], 10 * k + seed, noise == "noisy", 12 if quick else 20)
                ]
                orbit = np.array([v.orbit for v in views])
                for name, work in (
                    ("ours", lambda: carve_links(shapes, Q[:orbits], Outlines.of(views), orbit, voxel, floor=FLOOR)),  # noqa: B023
                    ("open3d", lambda: fuse_links(shapes, Q[:orbits], views, voxel, floor=FLOOR)),  # noqa: B023
                ):
                    meshes, cpu_s = timed(work)
                    starts = np.cumsum([0, *(len(m.vertices) for m in meshes.values())])
                    mesh = ColouredMesh(
                        np.concatenate([apply(poses[n][0], m.vertices) for n, m in meshes.items()]),
                        np.concatenate([m.faces + s for m, s in zip(meshes.values(), starts, strict=False)]),
                    )
                    iou = coverage([draw_mesh(mesh_scene(mesh), v.camera).mask[0] for v in held], held)
                    row = {**surface_error(mesh, true, seen), "held_iou": float(iou.mean()), "cpu_s": cpu_s}
                    rows[name].append(row)
            figures = {name: medians(row) for name, row in rows.items()}
            key = f"{noise}_{orbits}"
            results[key] = ratios(figures, "accuracy_mm", "completeness_mm", "chamfer_mm", "cpu_s")
            print("links", key, rounded(results[key]), flush=True)
    return results


def as_open3d(mesh: ColouredMesh) -> Any:
    return o3d.geometry.TriangleMesh(
        o3d.utility.Vector3dVector(mesh.vertices), o3d.utility.Vector3iVector(mesh.faces.astype(np.int32))
    )


def isosurface(values: np.ndarray, grid: Grid) -> ColouredMesh:
    """Triangulate as surface_net does, with Open3D: its volumes are indexed z, y, x and closed by us."""
    padded = np.where(values == 0, -1e-9, values)
    for axis in range(3):
        for end in (0, -1):
            np.moveaxis(padded, axis, 0)[end] = -grid.voxel
    made = o3d.t.geometry.TriangleMesh.create_isosurfaces(np.ascontiguousarray(padded.transpose(2, 1, 0))).to_legacy()
    return ColouredMesh(
        grid.origin + grid.voxel * np.asarray(made.vertices), np.asarray(made.triangles).astype(np.int64)
    )


def large_pieces(mesh: ColouredMesh) -> Any:
    made = as_open3d(mesh)
    piece, _, area = (np.asarray(part) for part in made.cluster_connected_triangles())
    made.remove_triangles_by_mask(area[piece] < 0.02 * area.max())
    made.remove_unreferenced_vertices()
    return made


def clean(robot: Robot, rough: Robot, quick: bool) -> dict[str, Any]:
    voxel, turns = (0.006, 1) if quick else (0.002, 5)
    true, seen = whole_mesh(robot, Q[0]), seen_surface(robot, Q[0])
    views = depth_views(robot, Q[0], 0, True, 12 if quick else 20)
    outlines = Outlines.of(views)
    grid = Grid.over(*find_volume(views, outlines), voxel)
    values = np.minimum(carve(outlines, grid), (grid.centres() @ FLOOR[:3]).astype(np.float32))
    net = surface_net(values, grid)
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "triangulate": (lambda: surface_net(values, grid), lambda: isosurface(values, grid)),
        "pieces": (lambda: drop_crumbs(net), lambda: large_pieces(net)),
        "normals": (lambda: vertex_normals(net), lambda: as_open3d(net).compute_vertex_normals()),
    }
    results: dict[str, Any] = {"voxel_m": voxel, "triangles": len(net.faces)}
    made = {}
    for name, (ours, peer) in pairs.items():
        spent: tuple[list[float], list[float]] = ([], [])
        for _ in range(turns):
            for side, work in enumerate((ours, peer)):
                made[name, side], cpu_s = timed(work)
                spent[side].append(cpu_s)
        one, two = (float(np.median(s)) for s in spent)
        results[name] = {"ours_cpu_s": one, "open3d_cpu_s": two, "cpu_ratio": two / one}
    for side, who in enumerate(("ours", "open3d")):
        results["triangulate"][who] = surface_error(drop_crumbs(made["triangulate", side]), true, seen)
    # Open3D returns normals of both orientations where ours has one: compare directions.
    theirs = np.asarray(made["normals", 1].vertex_normals)
    results["normals"]["agree"] = float((np.abs((theirs * made["normals", 0]).sum(axis=1)) > 0.99).mean())
    whole = drop_crumbs(net)
    small, cpu_s = timed(lambda: simplified(whole, len(whole.faces) // 10))
    results["decimate"] = {
        "cpu_s": cpu_s,
        "before": surface_error(whole, true, seen),
        "after": surface_error(small, true, seen),
        "moved_mm": 1e3 * float(distances_to(whole, small.vertices).mean()),
    }
    soft = as_open3d(whole).filter_smooth_taubin(10)
    after = ColouredMesh(np.asarray(soft.vertices), np.asarray(soft.triangles).astype(np.int64))
    results["taubin"] = surface_error(after, true, seen)
    print("clean", rounded(results), flush=True)
    return results


def rounded(found: Any) -> Any:
    """Keep four significant digits."""
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    return float(f"{found:.4g}") if isinstance(found, float) else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", choices=STEPS)
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    robot = Robot.load("yam")
    work = {"refine": refine, "search": search, "fuse": fuse, "links": links, "clean": clean}
    results: dict[str, Any] = {"open3d": o3d.__version__}
    with tempfile.TemporaryDirectory() as folder:
        rough = with_shapes(Robot.load(rough_description(robot, Path(folder))))
        for name in arguments.only or STEPS:
            results[name] = work[name](robot, rough, arguments.quick)
    print(json.dumps(rounded(results)))


if __name__ == "__main__":
    main()
