"""Training views for the detector: random table scenes of the lab, rendered through small windows of varied cameras.

seed ─> layout (a lab scenario, or objects of any size and colour) ─┐
     ─> arm, style, camera, a window of its image ──────────────────┴─> LabCamera ─> rgb, instances, faces, heights

    python -m kinema4d_model.detection.scenes --out runs/detector/data --count 3000 --workers 2

Everything of a view depends on its seed alone. Seeds start at FIRST_SEED, far from those of evaluations.
"""

from __future__ import annotations

import argparse
import colorsys
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_model.detection.views import HELD, ROBOT, Views, faces_of, footprint_row
from kinema4d_model.pipeline.lifting.geometry import view_plane
from kinema4d_ros.calibration import read_camera
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import DataError, KinemaError
from kinema4d_ros.core.transforms import make
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.kinematics import Kinematics, choose_kinematics, forward_all
from kinema4d_ros.lab import SMALL, LabCamera, LabObject, PlacedObject, Style, make_scenario
from kinema4d_ros.lab.scenario import TABLE_SCENARIOS
from kinema4d_ros.lab.scripted import Motion, tool_down
from kinema4d_ros.lab.simulation import LabState
from kinema4d_ros.physics.objects import ODD_SHAPES
from kinema4d_ros.physics.parts import odd_size
from kinema4d_ros.robot.model import Robot
from kinema4d_ros.runtime.pool import Lost, Recipe, run_jobs

__all__ = ["FIRST_SEED", "draw_view", "main", "make_views", "shard_maker"]

FIRST_SEED = 1_000_000
SIZE = (96, 144)
"""Rows and columns of a view."""
SHARD = 50
ODD_SHARE = 0.25
"""Share of objects that are no box, cylinder, sphere or bin, by default."""
_CENTRE = np.array([0.30, 0.0])
_SHAPES = ("box", "box", "cylinder", "cylinder", "sphere", "bin")


@lru_cache(maxsize=1)
def _kinematics() -> Kinematics:
    return choose_kinematics(Robot.load("yam"))


def draw_view(seed: int, size: tuple[int, int] = SIZE, odd: float = ODD_SHARE) -> Views:
    """Render the view of a seed: one image of `size` rows and columns; `odd` is the share of odd shapes."""
    for attempt in range(20):
        rng = np.random.default_rng([seed, attempt])
        camera = _camera(rng)
        try:
            objects = _scenario(seed, rng, camera, odd) if rng.uniform() < 0.45 else _layout(rng, odd)
        except KinemaError:
            continue
        q, held = _arm(rng, objects)
        if held is not None:
            objects = [held, *objects]
        window = _window(rng, camera, objects, size)
        if window is None:
            continue
        marks = [_mark(rng, i) for i in range(int(rng.integers(1, 4)))] if rng.uniform() < 0.2 else []
        made = _render(seed, window, objects, marks, q, held, _style(rng))
        if ((made.instance[0] > 0) & (made.instance[0] < HELD)).any():
            return made
    raise RuntimeError(f"no view for seed {seed}")


def _render(
    seed: int,
    camera: PinholeCamera,
    objects: Sequence[PlacedObject],
    marks: Sequence[PlacedObject],
    q: NDArray[np.float64],
    held: PlacedObject | None,
    style: Style,
) -> Views:
    robot = _kinematics().robot
    placed = {p.name: p for p in (*objects, *marks)}
    zeros = np.zeros(len(q))
    state = LabState(
        float(seed % 1000),
        robot.joint_names,
        q,
        zeros,
        zeros,
        forward_all(robot, q[None])[0],
        q,
        placed,
        objects[0].name,
        np.zeros(2),
        False,
    )
    image = LabCamera(robot, camera, style=style, quality=SMALL).capture(state, truth=True)
    if image.segmentation is None or image.depth_m is None:
        raise RuntimeError("the lab gave no ground truth")
    seg = image.segmentation
    instance = np.zeros(seg.shape, np.uint8)
    instance[(seg > 0) & (seg <= len(robot.links))] = ROBOT
    rows = []
    for number, thing in enumerate(objects, 1):
        seen = seg == image.names.index(thing.name) + 1
        instance[seen] = HELD if thing is held else number
        rows.append(footprint_row(thing, camera))
    view = view_plane(camera, max_range_m=np.inf)
    height = np.nan_to_num(view.height_of(image.depth_m), nan=0.0).clip(-0.2, 0.6)
    faces = faces_of(image.depth_m, seg, camera)
    faces[instance == 0] = 0
    table = np.zeros((16, rows[0].size), np.float32)
    table[: len(rows)] = rows[:16]
    return Views(
        image.rgb[None],
        instance[None],
        faces[None],
        height.astype(np.float16)[None],
        table[None],
        camera.K[None],
        camera.base_T_camera[None],
        np.array([seed]),
    )


def _camera(rng: np.random.Generator) -> PinholeCamera:
    """Sample a camera: half near the demo camera's view, half from anywhere in front of the arm."""
    demo = read_camera(share_path("calibration/demo_lab.yaml")).rectified()
    aim = np.array([*(_CENTRE + rng.normal(0, 0.06, 2)), rng.uniform(0.0, 0.08)])
    if rng.uniform() < 0.5:
        eye = demo.base_T_camera[:3, 3] + rng.normal(0, 0.12, 3)
    else:
        turn, rise = np.radians(rng.uniform(-150, 60)), np.radians(rng.uniform(22, 75))
        eye = aim + rng.uniform(0.55, 1.5) * np.array(
            [np.cos(turn) * np.cos(rise), np.sin(turn) * np.cos(rise), np.sin(rise)]
        )
    distance = float(np.linalg.norm(eye - aim))
    footprint = float(np.exp(rng.uniform(np.log(0.0014), np.log(0.0042))))
    camera = PinholeCamera.look_at(eye, aim, width=1024, height=1024, focal_px=distance / footprint)
    roll = rng.normal(0, 0.05)
    c, s = np.cos(roll), np.sin(roll)
    return camera.posed(camera.base_T_camera @ make([[c, -s, 0], [s, c, 0], [0, 0, 1]], [0, 0, 0]))


def _window(
    rng: np.random.Generator, camera: PinholeCamera, objects: Sequence[PlacedObject], size: tuple[int, int]
) -> PinholeCamera | None:
    """Crop the camera around a random object; None if it is out of sight."""
    thing = objects[int(rng.integers(len(objects)))]
    p = camera.camera_T_base @ np.array([*thing.position, 1.0])
    if p[2] < 0.2:
        return None
    uv = camera.project(p[None, :3])[0]
    rows, columns = size
    left = round(uv[0] - columns * rng.uniform(0.2, 0.8))
    top = round(uv[1] - rows * rng.uniform(0.2, 0.8))
    K = camera.K.copy()
    K[0, 2] -= left
    K[1, 2] -= top
    return PinholeCamera(columns, rows, K, base_T_camera=camera.base_T_camera)


def _scenario(seed: int, rng: np.random.Generator, camera: PinholeCamera, odd: float) -> list[PlacedObject]:
    names = TABLE_SCENARIOS
    name = names[int(rng.choice(len(names), p=None))]
    if rng.uniform() < 0.4:
        name = "dynamic"
    eye = camera.base_T_camera[:3, 3]
    objects = list(make_scenario(name, FIRST_SEED + seed % FIRST_SEED, eye, odd_share=odd, twins=odd).objects)
    if rng.uniform() < 0.5:
        objects = [replace(p, object=replace(p.object, rgb=_colour(rng))) for p in objects]
    if rng.uniform() < 0.25:
        rgb = objects[0].object.rgb
        objects = [replace(p, object=replace(p.object, rgb=rgb)) if rng.uniform() < 0.4 else p for p in objects]
    return objects


def _colour(rng: np.random.Generator) -> tuple[float, float, float]:
    if rng.uniform() < 0.25:  # grey, white, brown, black: also the colours of tables
        value, tint = rng.uniform(0.08, 0.95), rng.uniform(0.0, 0.35)
        return colorsys.hsv_to_rgb(rng.uniform(0.04, 0.14), tint, value)
    return colorsys.hsv_to_rgb(rng.uniform(), rng.uniform(0.35, 1.0), rng.uniform(0.3, 0.98))


def _object(rng: np.random.Generator, number: int, odd: float = 0.0) -> LabObject:
    if rng.uniform() < odd:
        unusual = [s for s in ODD_SHAPES if s != "hull"]
        shape: Any = unusual[int(rng.integers(len(unusual)))]
        size = odd_size(shape, float(rng.uniform(0.028, 0.065)), float(rng.uniform(0.03, 0.11)))
        return LabObject(f"object_{number}_{shape}", shape, size, _colour(rng), 0.05)
    shape = _SHAPES[int(rng.integers(len(_SHAPES)))]
    width = float(np.exp(rng.uniform(np.log(0.018), np.log(0.09))))
    height = float(np.exp(rng.uniform(np.log(0.016), np.log(0.13))))
    size = (width, width, height)
    if shape == "box" and rng.uniform() < 0.55:
        size = (width, float(np.clip(width * rng.uniform(0.4, 1.6), 0.015, 0.12)), height)
    elif shape == "sphere":
        size = (width, width, width)
    elif shape == "bin":
        side = max(1.4 * width, 0.05)
        size = (side, side * float(rng.uniform(0.8, 1.25)), float(rng.uniform(0.02, 0.06)))
    return LabObject(f"object_{number}_{shape}", shape, size, _colour(rng), 0.05)


def _layout(rng: np.random.Generator, odd: float) -> list[PlacedObject]:
    """Place up to ten objects of any size, some nearly touching, some of one colour, some stacked."""
    count = int(rng.integers(1, 11))
    near = _CENTRE + rng.normal(0, 0.05, 2)
    spread, gap = rng.uniform(0.05, 0.2), rng.uniform(0.001, 0.02)
    placed: list[PlacedObject] = []
    for number in range(count):
        thing = _object(rng, number, odd)
        if placed and rng.uniform() < 0.2:
            thing = replace(thing, rgb=placed[-1].object.rgb)
        for _ in range(40):
            xy = near + rng.normal(0, spread, 2)
            free = all(
                np.hypot(*(p.position[:2] - xy)) > p.object.radius + thing.radius + gap
                for p in placed
                if p.position[2] < 0.5 * p.object.height + 0.001
            )
            if np.hypot(*xy) > 0.15 and free:
                x, y = xy.tolist()
                placed.append(PlacedObject.standing(thing, x, y, float(rng.uniform(-np.pi, np.pi))))
                break
    if placed and rng.uniform() < 0.2:
        base = placed[int(rng.integers(len(placed)))]
        thing = _object(rng, 90)
        if base.object.shape in ("box", "cylinder") and thing.size[0] < 1.5 * base.object.size[0]:
            shift = rng.normal(0, 0.15 * base.object.size[0], 2)
            x, y = (base.position[:2] + shift).tolist()
            placed.append(PlacedObject.standing(thing, x, y, float(rng.uniform(-np.pi, np.pi)), base.object.height))
    return placed


def _mark(rng: np.random.Generator, number: int) -> PlacedObject:
    """Make a sheet on the table: flat things are not objects."""
    x, y = rng.uniform(0.03, 0.15, 2).tolist()
    sheet = LabObject(f"mark_{number}", "box", (x, y, 0.0006), _colour(rng), 0.01)
    px, py = (_CENTRE + rng.normal(0, 0.12, 2)).tolist()
    return PlacedObject.standing(sheet, px, py, float(rng.uniform(-np.pi, np.pi)))


def _arm(rng: np.random.Generator, objects: Sequence[PlacedObject]) -> tuple[NDArray[np.float64], PlacedObject | None]:
    """Sample joint positions: near home, anywhere, or with the gripper above the table, sometimes holding an object."""
    robot = _kinematics().robot
    home = robot.home_position()
    choice = rng.uniform()
    if choice < 0.5:
        spread = np.array([0.0 if j.kind == "prismatic" else 0.15 for j in robot.actuated])
        return np.clip(home + rng.uniform(-1, 1, len(home)) * spread, robot.lower, robot.upper), None
    x, y = (_CENTRE + rng.normal(0, 0.07, 2)).tolist()
    tall = max((p.position[2] + p.object.height / 2 for p in objects), default=0.0)
    z = float(rng.uniform(0.02, 0.10) + (tall if rng.uniform() < 0.7 else 0.02))
    for _ in range(4):
        yaw, width = float(rng.uniform(-np.pi, np.pi)), float(rng.uniform(0.02, 0.09))
        motion = Motion(_kinematics(), home)
        try:
            motion.to_pose(tool_down(x, y, z, yaw))
            motion.grip(width)
        except KinemaError:
            continue
        held = None
        if z > tall + 0.06 and rng.uniform() < 0.4:
            thing = replace(_object(rng, 99), shape="box", size=(width, width, float(rng.uniform(0.03, 0.06))))
            held = PlacedObject.standing(thing, x, y, yaw, z - 0.6 * thing.height)
        return motion.q.copy(), held
    return home, None


def _style(rng: np.random.Generator) -> Style:
    style = Style.varied(FIRST_SEED + int(rng.integers(1 << 30)))
    if rng.uniform() < 0.6:
        tint = np.clip(rng.uniform(0.5, 1.2) + rng.uniform(-0.2, 0.2, 3), 0.1, 1.5)
        style = replace(style, tint=(float(tint[0]), float(tint[1]), float(tint[2])))
    if rng.uniform() < 0.4:
        style = replace(style, robot_rgb=_colour(rng))
    return style


def make_views(out: Path, first: int, count: int, workers: int = 1, odd: float = ODD_SHARE) -> Iterator[int]:
    """Render views of `count` seeds into shards of OUT and yield the first seed of each; existing shards are kept."""
    out.mkdir(parents=True, exist_ok=True)
    starts = [s for s in range(first, first + count, SHARD) if not (out / f"views-{s}.npz").is_file()]
    recipe = Recipe("kinema4d_model.detection.scenes:shard_maker", (str(out), odd))
    for done in run_jobs(recipe, starts, workers=workers):
        if isinstance(done, Lost):
            raise DataError(f"views from seed {done.job} on were not made: {done.reason}", expected="a shard per job")
        yield int(done.value)


def shard_maker(turn: int, out: str, odd: float) -> Callable[[int], int]:
    """Build a worker of the pool: it renders one shard per job, which is the shard's first seed."""

    def make_shard(start: int) -> int:
        views = [draw_view(seed, odd=odd) for seed in range(start, start + SHARD)]
        Views.join(views).save(Path(out) / f"views-{start}.npz")
        return start

    return make_shard


def main(argv: Sequence[str] | None = None) -> int:
    """Render training views."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/detector/data"))
    parser.add_argument("--first", type=int, default=FIRST_SEED, help=f"first seed, {FIRST_SEED} or more")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--odd", type=float, default=ODD_SHARE, help="share of mugs, bottles and other odd shapes")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args(argv)
    if arguments.first < FIRST_SEED:
        parser.error(f"--first is {arguments.first}; expected {FIRST_SEED} or more")
    for start in make_views(arguments.out, arguments.first, arguments.count, arguments.workers, arguments.odd):
        print(f"views-{start}.npz", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
