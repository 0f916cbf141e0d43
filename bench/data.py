"""CPU time to make episodes, against a plain MuJoCo loop with `mujoco.Renderer` on the same scenes.

    python bench/data.py            eight episodes
    python bench/data.py --quick    two small ones: a smoke test

Both get the same scenes and plans and return the same arrays: colours, depth and segmentation of every frame, and
the commanded robot alone (XYZ and link ids). Ours then also encodes them. CPU seconds are user + system of the
whole process; rounds alternate and the best of each counts. The peer creates a `Renderer` in every episode, because
a new scene is a new model. A second peer (`tuned_`) is a faster configuration: a thirtieth of the robot's triangles, a
shadow map of 512 instead of 4096 pixels a side and no multi-sampling; its masks and depth are off by millimetres, ours
are exact. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from dataclasses import replace
from functools import lru_cache
from typing import Any

os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("PYOPENGL_PLATFORM", os.environ["MUJOCO_GL"])

import mujoco
import numpy as np

from kinema4d_model.data import lab_episode
from kinema4d_model.data.episode import Episode, load_robot, points_from_depth
from kinema4d_model.data.episode_files import encode_episode
from kinema4d_model.data.lab_config import LabConfig, load_config, parse_config
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.transforms import make, to_quaternion
from kinema4d_ros.lab import LabObject, PlacedObject
from kinema4d_ros.lab.simulation import MATERIALS
from kinema4d_ros.physics.model import build_spec, tune_servos
from kinema4d_ros.render.clusters import merge_vertices
from kinema4d_ros.robot import Robot


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def ours(config: LabConfig, number: int) -> tuple[Episode, dict[str, float]]:
    start = cpu_seconds()
    episode = lab_episode.make_episode(config, 1, "train", number)
    made = cpu_seconds()
    files = encode_episode(episode)
    return episode, {
        "make_s": made - start,
        "encode_s": cpu_seconds() - made,
        "bytes": float(sum(len(data) for data in files.values())),
    }


@lru_cache(maxsize=1)
def coarse_robot(name: str) -> Robot:
    """Simplify the robot by merging its vertices on a grid of 6 mm."""
    robot = load_robot(name)
    links = tuple(
        replace(link, visuals=tuple(replace(v, mesh=merge_vertices(v.mesh, 0.006)) for v in link.visuals))
        for link in robot.links
    )
    return replace(robot, links=links)


VISUAL_GROUP = 2
"""MuJoCo group of the robot's visual meshes; its collision shapes are in group 3."""


def add_visuals(spec: Any, robot: Robot) -> None:
    """Add the robot's visual meshes to the bodies of its links, without mass and collisions."""
    for link in robot.links:
        body = spec.body(link.name)
        for i, shape in enumerate(link.visuals):
            name = f"{link.name}_visual_{i}"
            spec.add_mesh(
                name=name, uservert=shape.mesh.vertices.astype(np.float32).ravel(), userface=shape.mesh.faces.ravel()
            )
            geom = body.add_geom(name=name, type=mujoco.mjtGeom.mjGEOM_MESH, meshname=name, contype=0, conaffinity=0)
            x, y, z, w = to_quaternion(shape.link_T_geometry)
            geom.pos, geom.quat = shape.link_T_geometry[:3, 3], [w, x, y, z]
            geom.group, geom.mass = VISUAL_GROUP, 0.0
            geom.rgba = shape.rgba or (0.74, 0.76, 0.79, 1.0)


def add_camera(spec: Any, name: str, camera: PinholeCamera) -> None:
    """Add a fixed camera and enlarge the model's image buffer to its size."""
    # MuJoCo's cameras look along -z with y up.
    base_T_camera = camera.base_T_camera @ make(np.diag([1.0, -1.0, -1.0]))
    x, y, z, w = to_quaternion(base_T_camera)
    element = spec.worldbody.add_camera(name=name, pos=base_T_camera[:3, 3], quat=[w, x, y, z])
    width, height = camera.width, camera.height
    element.resolution = [width, height]
    element.sensor_size = [width * 1e-5, height * 1e-5]
    element.focal_pixel = [camera.K[0, 0], camera.K[1, 1]]
    # MuJoCo measures the principal point from the image centre, against the pixel direction.
    element.principal_pixel = [width / 2 - camera.K[0, 2], height / 2 - camera.K[1, 2]]
    visual = spec.visual.global_
    visual.offwidth, visual.offheight = max(width, visual.offwidth), max(height, visual.offheight)


def peer(episode: Episode, robot: Robot, step_s: float, tuned: bool) -> dict[str, float]:
    """Make the same episode with MuJoCo's model, stepping and renderer only, from the recorded commands."""
    start = cpu_seconds()
    placed = [
        PlacedObject(LabObject(o.name, o.shape, o.size, o.rgb, 0.05), o.base_T_object[0])  # type: ignore[arg-type]
        for o in episode.outcome.objects
    ]
    spec = build_spec(robot, placed, MATERIALS, timestep_s=step_s)
    add_visuals(spec, robot)
    add_camera(spec, "eye", episode.camera)
    model = spec.compile()
    tune_servos(model, robot, MATERIALS)
    model.vis.global_.offwidth = max(model.vis.global_.offwidth, episode.camera.width)
    model.vis.global_.offheight = max(model.vis.global_.offheight, episode.camera.height)
    if tuned:
        model.vis.quality.shadowsize = 512
        model.vis.quality.offsamples = 0
    data, alone = mujoco.MjData(model), mujoco.MjData(model)
    assert episode.actions is not None
    places = [int(model.joint(name).qposadr[0]) for name in robot.joint_names]
    data.qpos[places] = episode.actions[0]
    opened = cpu_seconds()
    renderer = mujoco.Renderer(model, episode.camera.height, episode.camera.width)
    ready = cpu_seconds()
    world, only = mujoco.MjvOption(), mujoco.MjvOption()
    world.geomgroup[:] = [1, 1, 1, 0, 0, 0]
    only.geomgroup[:] = [0, 0, 1, 0, 0, 0]
    stepping = 0.0
    frames: list[Any] = []
    for t, action in enumerate(episode.actions):
        if t:
            begin = cpu_seconds()
            before, count = episode.actions[t - 1], round(float(episode.times[t] - episode.times[t - 1]) / step_s)
            for i in range(count):
                data.ctrl[:] = before + (action - before) * (i + 1) / count
                mujoco.mj_step(model, data)
            stepping += cpu_seconds() - begin
        mujoco.mj_forward(model, data)
        frames.append(draw(renderer, data, world, colour=True))
        alone.qpos[places] = action
        for joint in robot.joints:
            if joint.mimic:
                leader = action[robot.joint_names.index(joint.mimic.joint)]
                alone.qpos[model.joint(joint.name).qposadr[0]] = joint.mimic.multiplier * leader + joint.mimic.offset
        mujoco.mj_forward(model, alone)
        _, z, ids = draw(renderer, alone, only, colour=False)
        points_from_depth(np.where(ids[..., 0] >= 0, z, np.float32(np.nan))[None], episode.camera)
    renderer.close()
    done = cpu_seconds()
    return {
        "build_s": opened - start,
        "renderer_s": ready - opened,
        "physics_s": stepping,
        "drawing_s": done - ready - stepping,
        "total_s": done - start,
    }


def draw(renderer: mujoco.Renderer, data: mujoco.MjData, option: mujoco.MjvOption, colour: bool) -> Any:
    renderer.update_scene(data, camera="eye", scene_option=option)
    rgb = renderer.render() if colour else None
    renderer.enable_depth_rendering()
    z = renderer.render()
    renderer.disable_depth_rendering()
    renderer.enable_segmentation_rendering()
    ids = renderer.render()
    renderer.disable_segmentation_rendering()
    return rgb, z, ids


def keep(best: dict[str, dict[str, float]], name: str, found: dict[str, float], key: str) -> None:
    """Keep the round with the smallest `key`."""
    if name not in best or found[key] < best[name][key]:
        best[name] = found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--episodes", type=int, default=8)
    arguments = parser.parse_args()
    config = load_config("nano")
    count = arguments.episodes
    if arguments.quick:
        config, count = parse_config({**config.document, "frames": 5, "width": 48, "height": 32}, "quick"), 2
    lab_episode.make_episode(config, 1, "train", 1000)  # compiles, loads the robot, caches its workspace
    rows: list[dict[str, float]] = []
    peers: dict[str, list[dict[str, float]]] = {"peer": [], "tuned": []}
    robots = {"peer": load_robot(config.robot), "tuned": coarse_robot(config.robot)}
    triangles = {name: sum(len(v.mesh.faces) for k in r.links for v in k.visuals) for name, r in robots.items()}
    start = time.monotonic()
    reason = ""
    for number in range(count):
        best: dict[str, dict[str, float]] = {}
        for _ in range(1 if arguments.quick else 2):
            episode, numbers = ours(config, number)
            keep(best, "ours", numbers, "make_s")
            for name, robot in robots.items():
                try:
                    keep(best, name, peer(episode, robot, config.step_s, name == "tuned"), "total_s")
                except Exception as error:  # without OpenGL, MuJoCo raises various errors
                    reason = f"{type(error).__name__}: {error}"[:120]
        rows.append(best.pop("ours"))
        for name, found in best.items():
            peers[name].append(found)
    wall = time.monotonic() - start
    mine = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    per = mine["make_s"] + mine["encode_s"]
    result: dict[str, Any] = {
        "bench": "data",
        "episodes": count,
        "frames": config.frames,
        "size": f"{config.width}x{config.height}",
        "make_s": round(mine["make_s"], 3),
        "encode_s": round(mine["encode_s"], 3),
        "kilobytes": round(mine["bytes"] / 1000, 1),
        "episodes_per_cpu_minute": round(60 / per, 1),
        "wall_s": round(wall, 1),
    }
    print(f"ours: {mine['make_s']:.3f} s to plan, simulate and render, {mine['encode_s']:.3f} s to encode")
    for name, found in peers.items():
        if found:
            other = {key: float(np.mean([row[key] for row in found])) for key in found[0]}
            print(f"MuJoCo, {triangles[name]} triangles: " + ", ".join(f"{k[:-2]} {v:.3f} s" for k, v in other.items()))
            result |= {f"{name}_{key}": round(value, 3) for key, value in other.items()}
            result |= {f"{name}_triangles": triangles[name]}
            result[f"times_faster_than_{name}"] = round(other["total_s"] / mine["make_s"], 2)
    if reason:
        result["not_measured"] = reason
        print(f"MuJoCo's renderer was not measured: {reason}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
