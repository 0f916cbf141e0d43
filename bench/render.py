"""CPU time of a robot pointmap, against MuJoCo, pyrender, Open3D and the time to write the memory.

    python bench/render.py            everything
    python bench/render.py --quick    a few frames, no peers: a smoke test

All candidates render the same frames in the same process, alternating; the best round of each counts. CPU
seconds are user + system of the whole process. The last line is JSON.

Conventions of the peers: MuJoCo and pyrender read OpenGL buffers, whose pixel centres agree with ours
(u + 0.5, v + 0.5) once rows are flipped; depth is converted to metres along the optical axis. MuJoCo
renders depth and segmentation in two passes, because one pass gives only one of them; pyrender renders both
in one. All return the same: XYZ of every pixel as float32, NaN where there is no robot, and link ids.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("PYOPENGL_PLATFORM", os.environ["MUJOCO_GL"])

import numpy as np

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot import Geometry, Robot, TriangleMesh

Drawer = Callable[[], tuple[np.ndarray, np.ndarray]]
NEAR, FAR = 0.01, 10.0


def unproject(z: np.ndarray, ids: np.ndarray, camera: PinholeCamera, xyz: np.ndarray) -> None:
    """Convert depth along the axis to XYZ, written into `xyz`: the step from a depth image to a pointmap."""
    if id(camera) not in _rays:
        _rays[id(camera)] = camera.rays().astype(np.float32)
    np.multiply(_rays[id(camera)], np.where(ids > 0, z, np.float32(np.nan))[..., None], out=xyz)


_rays: dict[int, np.ndarray] = {}


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def best(candidates: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Measure the smallest CPU seconds of each, alternating."""
    least = dict.fromkeys(candidates, float("inf"))
    for _ in range(rounds):
        for name, run in candidates.items():
            start = cpu_seconds()
            run()
            least[name] = min(least[name], cpu_seconds() - start)
    return least


def demo(robot: Robot, frames: int, width: int = 720, height: int = 480) -> tuple[np.ndarray, PinholeCamera]:
    """Make link poses of a reach over the table, and a camera about 1 m away."""
    s = np.linspace(0.0, 1.0, frames)
    q = np.tile(robot.home_position(), (frames, 1))
    q[:, 0] = 0.6 * np.sin(2 * np.pi * s)
    q[:, 1] = 0.3 + 0.9 * s
    q[:, 2] = 0.5 + 0.9 * np.sin(np.pi * s)
    q[:, 3] = 0.3 * np.sin(3 * s)
    q[:, 6:] = robot.lower[6:] + (robot.upper[6:] - robot.lower[6:]) * (0.5 + 0.5 * np.sin(6 * s))[:, None]
    camera = PinholeCamera.look_at([0.75, -0.7, 0.5], [0.15, 0.0, 0.26], width=width, height=height, fov_y_deg=30.0)
    return forward_all(robot, q), camera


def shapes(robot: Robot) -> list[tuple[int, Geometry]]:
    return [(i, g) for i, link in enumerate(robot.links) for g in link.visuals]


def mujoco_drawer(robot: Robot, poses: np.ndarray, camera: PinholeCamera) -> Drawer:
    """Render with MuJoCo, each link a mocap body with the same triangles; returns z and link ids."""
    import mujoco

    spec = mujoco.MjSpec()
    spec.visual.global_.offwidth, spec.visual.global_.offheight = camera.width, camera.height
    spec.visual.map.znear, spec.visual.map.zfar = NEAR, FAR
    spec.visual.quality.offsamples = 0
    spec.visual.quality.shadowsize = 0
    spec.stat.extent = 1.0
    for n, (_, g) in enumerate(shapes(robot)):
        mesh = spec.add_mesh(name=f"m{n}")
        mesh.uservert = (g.mesh.vertices @ g.link_T_geometry[:3, :3].T + g.link_T_geometry[:3, 3]).ravel()
        mesh.userface = g.mesh.faces.ravel()
        mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
        body = spec.worldbody.add_body(name=f"b{n}", mocap=True)
        body.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname=f"m{n}", contype=0, conaffinity=0)
    R, t = camera.base_T_camera[:3, :3], camera.base_T_camera[:3, 3]
    quat = np.empty(4)
    mujoco.mju_mat2Quat(quat, np.ascontiguousarray(R * (1.0, -1.0, -1.0)).ravel())
    fovy = float(np.degrees(2 * np.arctan(0.5 * camera.height / camera.K[1, 1])))
    spec.worldbody.add_camera(name="eye", pos=t, quat=quat, fovy=fovy)
    model = spec.compile()
    data = mujoco.MjData(model)
    renderer = mujoco.Renderer(model, camera.height, camera.width)
    links = np.array([0, *(i + 1 for i, _ in shapes(robot))])

    def draw() -> tuple[np.ndarray, np.ndarray]:
        xyz = np.empty((len(poses), camera.height, camera.width, 3), np.float32)
        ids = np.empty(xyz.shape[:3], np.uint8)
        for f in range(len(poses)):
            for n, (link, _) in enumerate(shapes(robot)):
                T = poses[f, link]
                data.mocap_pos[n] = T[:3, 3]
                mujoco.mju_mat2Quat(data.mocap_quat[n], np.ascontiguousarray(T[:3, :3]).ravel())
            mujoco.mj_kinematics(model, data)
            mujoco.mj_camlight(model, data)
            renderer.update_scene(data, camera="eye")
            renderer.enable_depth_rendering()
            z = renderer.render()
            renderer.disable_depth_rendering()
            renderer.enable_segmentation_rendering()
            ids[f] = links[renderer.render()[..., 0] + 1]
            renderer.disable_segmentation_rendering()
            unproject(z, ids[f], camera, xyz[f])
        return xyz, ids

    return draw


def pyrender_drawer(robot: Robot, poses: np.ndarray, camera: PinholeCamera) -> Drawer:
    """Render depth and link ids with pyrender in one pass, the ids as colours."""
    import pyrender
    import pyrender.renderer
    import trimesh

    # pyrender uses four samples per pixel and then reads the depth of one that is off the centre.
    storage = pyrender.renderer.glRenderbufferStorageMultisample
    pyrender.renderer.glRenderbufferStorageMultisample = lambda target, _, *rest: storage(target, 0, *rest)

    scene = pyrender.Scene()
    nodes = []
    for link, g in shapes(robot):
        points = g.mesh.vertices @ g.link_T_geometry[:3, :3].T + g.link_T_geometry[:3, 3]
        mesh = pyrender.Mesh.from_trimesh(trimesh.Trimesh(points, g.mesh.faces, process=False), smooth=False)
        nodes.append((link, scene.add(mesh)))
    K = camera.K
    eye = pyrender.IntrinsicsCamera(K[0, 0], K[1, 1], K[0, 2], K[1, 2], znear=NEAR, zfar=FAR)
    scene.add(eye, pose=camera.base_T_camera @ np.diag([1.0, -1.0, -1.0, 1.0]))
    renderer = pyrender.OffscreenRenderer(camera.width, camera.height)

    colours = {node: (link + 1, 0, 0) for link, node in nodes}

    def draw() -> tuple[np.ndarray, np.ndarray]:
        xyz = np.empty((len(poses), camera.height, camera.width, 3), np.float32)
        ids = np.empty(xyz.shape[:3], np.uint8)
        for f in range(len(poses)):
            for link, node in nodes:
                scene.set_pose(node, poses[f, link])
            colour, z = renderer.render(scene, flags=pyrender.RenderFlags.SEG, seg_node_map=colours)
            ids[f] = colour[..., 0]
            unproject(z, ids[f], camera, xyz[f])
        return xyz, ids

    return draw


def open3d_drawer(robot: Robot, poses: np.ndarray, camera: PinholeCamera) -> Drawer:
    """Cast rays with Open3D: a static scene per link, and the rays of the link's image box in the link's frame."""
    import open3d as o3d

    scenes = []
    for link, g in shapes(robot):
        points = g.mesh.vertices @ g.link_T_geometry[:3, :3].T + g.link_T_geometry[:3, 3]
        scene = o3d.t.geometry.RaycastingScene()
        scene.add_triangles(
            o3d.core.Tensor(points.astype(np.float32)), o3d.core.Tensor(np.ascontiguousarray(g.mesh.faces, np.uint32))
        )
        low, high = points.min(axis=0), points.max(axis=0)
        corners = np.array([[x, y, z] for x in (low[0], high[0]) for y in (low[1], high[1]) for z in (low[2], high[2])])
        scenes.append((link, scene, corners))
    rays = camera.rays()
    camera_T_link = camera.camera_T_base @ poses

    def draw() -> tuple[np.ndarray, np.ndarray]:
        xyz = np.empty((len(poses), camera.height, camera.width, 3), np.float32)
        ids = np.zeros(xyz.shape[:3], np.uint8)
        for f in range(len(poses)):
            z = np.full((camera.height, camera.width), np.inf, np.float32)
            for link, scene, corners in scenes:
                T = camera_T_link[f, link]
                uv = camera.project(corners @ T[:3, :3].T + T[:3, 3])
                u0, v0 = np.clip(np.floor(uv.min(axis=0)), 0, (camera.width, camera.height)).astype(int)
                u1, v1 = np.clip(np.ceil(uv.max(axis=0)) + 1, 0, (camera.width, camera.height)).astype(int)
                if u0 >= u1 or v0 >= v1:
                    continue
                box = (slice(v0, v1), slice(u0, u1))
                directions = rays[box].reshape(-1, 3) @ T[:3, :3]
                start = np.broadcast_to(-T[:3, :3].T @ T[:3, 3], directions.shape)
                table = np.hstack([start, directions]).astype(np.float32)
                hit = scene.cast_rays(o3d.core.Tensor(table))["t_hit"].numpy().reshape(v1 - v0, u1 - u0)
                nearer = hit < z[box]
                z[box][nearer] = hit[nearer]
                ids[f][box][nearer] = link + 1
            unproject(z, ids[f], camera, xyz[f])
        return xyz, ids

    return draw


def memory_floor(frames: int, camera: PinholeCamera, rounds: int) -> dict[str, float]:
    """Measure the CPU seconds to write the output once, on fresh and on warm pages."""
    shape = (frames, camera.height, camera.width)
    warm = (np.zeros((*shape, 3), np.float32), np.zeros(shape, np.uint8))

    def fresh_pages() -> None:
        np.empty((*shape, 3), np.float32).fill(np.nan)
        np.empty(shape, np.uint8).fill(0)

    def warm_pages() -> None:
        warm[0].fill(np.nan)
        warm[1].fill(0)

    return best({"fresh": fresh_pages, "warm": warm_pages}, rounds)


def subset(robot: Robot, fraction: float) -> Scene:
    """Make the scene with a subset of the triangles, sampled over every mesh; back faces are still culled."""
    parts = []
    for link, g in shapes(robot):
        faces = g.mesh.faces[:: max(1, round(1 / fraction))]
        mesh = TriangleMesh(g.mesh.vertices, np.ascontiguousarray(faces), None, g.mesh.closed)
        parts.append((link, Geometry("mesh", g.link_T_geometry, mesh, g.rgba)))
    return Scene(parts, len(robot.links))


def agreement(name: str, ours: Any, theirs: tuple[np.ndarray, np.ndarray]) -> str:
    xyz, ids = theirs
    differ = int((ours.link_ids != ids).sum())
    same = (ours.link_ids == ids) & (ids > 0)
    error = np.abs(ours.xyz[..., 2][same] - xyz[..., 2][same]).mean() * 1e6
    return f"{name}: {differ} of {(ours.link_ids > 0).sum()} pixels differ in link, mean |dz| {error:.2f} um"


def scaling(robot: Robot, rounds: int) -> None:
    cases: dict[str, Callable[[], Any]] = {}
    full = Scene.from_robot(robot)
    for frames in (1, 49, 98):
        poses, camera = demo(robot, frames)
        cases[f"{frames} frames"] = lambda p=poses, c=camera: render_poses(full, p, c)
    for width, height in ((360, 240), (1440, 960)):
        poses, camera = demo(robot, 49, width, height)
        cases[f"{width} x {height}"] = lambda p=poses, c=camera: render_poses(full, p, c)
    poses, camera = demo(robot, 49)
    for fraction in (0.1, 0.5):
        part = subset(robot, fraction)
        cases[f"{part.triangle_count} triangles"] = lambda s=part: render_poses(s, poses, camera)
    for run in cases.values():
        run()
    print("\nscaling (49 frames, 720 x 480, all triangles unless stated)")
    for name, seconds in best(cases, rounds).items():
        print(f"  {name:20s} {seconds:8.4f} CPU s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few small frames, no peers")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    frames, size = (3, (180, 120)) if options.quick else (49, (720, 480))
    rounds = 2 if options.quick else options.rounds
    robot = Robot.load("yam")
    poses, camera = demo(robot, frames, *size)
    start = time.perf_counter()
    scene = Scene.from_robot(robot)
    ours = render_poses(scene, poses, camera)
    render_poses(scene, poses, camera, rgb=True)
    cover = (ours.link_ids > 0).mean(axis=(1, 2))
    print(f"{scene.triangle_count} triangles, {frames} frames of {size[0]} x {size[1]}, robot covers", end=" ")
    print(f"{cover.min():.0%} to {cover.max():.0%} of the image")
    print(f"first call with packing and compilation (or its cache): {time.perf_counter() - start:.1f} s")

    candidates: dict[str, Callable[[], Any]] = {
        "ours": lambda: render_poses(scene, poses, camera),
        "ours, warm memory": lambda: render_poses(scene, poses, camera, out=ours),
        "ours + RGB": lambda: render_poses(scene, poses, camera, rgb=True),
    }
    skipped = {}
    for name, build in {"mujoco": mujoco_drawer, "pyrender": pyrender_drawer, "open3d": open3d_drawer}.items():
        if options.quick:
            skipped[name] = "--quick"
            continue
        try:
            drawer = build(robot, poses, camera)
            print(agreement(name, ours, drawer()))
            candidates[name] = drawer
        except Exception as error:  # a peer that is missing or has no GL must not stop the benchmark
            skipped[name] = f"{type(error).__name__}: {error}"
    for name, reason in skipped.items():
        print(f"skipped {name}: {reason}")

    seconds = best(candidates, rounds)
    floor = memory_floor(frames, camera, rounds)
    print(f"\nCPU seconds (user + system), best of {rounds} alternating rounds")
    for name, value in seconds.items():
        print(f"  {name:20s} {value:8.4f}  {value / seconds['ours']:6.2f} x ours")
    for kind, value in floor.items():
        print(f"  memory, {kind:11s}  {value:8.4f}")
    if not options.quick:
        scaling(robot, 3)
    result = {
        "cpu_s": {name: round(value, 4) for name, value in seconds.items()},
        "ratio": {
            name: round(seconds[name] / seconds["ours"], 2)
            for name in ("mujoco", "pyrender", "open3d")
            if name in seconds
        },
        "over_fresh_floor": round(seconds["ours"] / floor["fresh"], 2),
        "over_warm_floor": round(seconds["ours, warm memory"] / floor["warm"], 2),
        "skipped": sorted(skipped),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
