"""Table of all file readers: a function that writes a valid file or folder, and the call that reads it.

Add a new reader as one `Reader(...)` here (or in `file_readers_model` if it needs torch) to have it fuzzed.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.outcomes import Outcome, patches_between
from kinema4d_ros.core.rollout import Provenance, Rollout
from kinema4d_ros.core.trajectory import JointTrajectory

__all__ = ["CORE", "Reader", "small_rollout"]


@dataclass(frozen=True)
class Reader:
    """One reader.

    Attributes:
        name: of its tests.
        make: writes a valid file or folder into the given folder and returns its path.
        read: reads it; consumes it entirely.
        repair: corrects checksums after damage, so that it reaches the code behind them; None = no checksums.
        names_file: errors must name a file; False if there is none (messages from a socket).
        files: patterns of the files to damage.
        slow: starts a process per file; gets a sixth of the cases in a short run.
    """

    name: str
    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    repair: Callable[[Path], None] | None = None
    names_file: bool = True
    files: tuple[str, ...] = ("*",)
    slow: bool = False


def _write(folder: Path, name: str, data: bytes | str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


URDF = """<?xml version="1.0"?>
<robot name="two">
  <material name="red"><color rgba="1 0 0 1"/></material>
  <link name="a">
    <visual><origin xyz="0 0 0.1" rpy="0 0 1"/><geometry><box size="0.1 0.2 0.3"/></geometry>
      <material name="red"/></visual>
    <collision><geometry><cylinder radius="0.1" length="0.4"/></geometry></collision>
    <inertial><mass value="1.5"/><inertia ixx="0.1" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.1"/></inertial>
  </link>
  <link name="b"><visual><geometry><mesh filename="part.stl" scale="0.001 0.001 0.001"/></geometry></visual></link>
  <link name="c"><visual><geometry><sphere radius="0.02"/></geometry></visual></link>
  <joint name="j" type="revolute">
    <parent link="a"/><child link="b"/><origin xyz="0.1 0.2 0.3" rpy="0.1 0.2 0.3"/><axis xyz="0 0 1"/>
    <limit lower="-1" upper="2" effort="3" velocity="4"/>
  </joint>
  <joint name="k" type="prismatic">
    <parent link="b"/><child link="c"/><axis xyz="1 0 0"/><limit lower="0" upper="0.1" effort="3" velocity="4"/>
    <mimic joint="j" multiplier="0.05" offset="0"/>
  </joint>
</robot>
"""
SIDECAR = """tool_link: c
home: ready
poses:
  ready: {j: 0.5}
gripper: {joint: j, closed: 0.0, open: 1.0, width_closed_m: 0.0, width_open_m: 0.1,
  vendor: [{name: k2, joint: k, multiplier: 0.5, offset: 0.0}]}
"""
XACRO = """<?xml version="1.0"?>
<robot name="two" xmlns:xacro="http://www.ros.org/wiki/xacro">
  <xacro:arg name="size" default="0.3"/>
  <xacro:property name="half" value="${$(arg size) / 2}"/>
  <xacro:macro name="part" params="n s:=1"><link name="${n}"><visual><geometry><box size="${s} ${half} 0.1"/></geometry>
    </visual></link></xacro:macro>
  <xacro:include filename="more.xacro"/>
  <xacro:part n="a"/><xacro:part n="b" s="2"/>
  <xacro:if value="${half > 0.1}"><joint name="j" type="continuous"><parent link="a"/><child link="b"/>
    <axis xyz="0 0 1"/></joint></xacro:if>
</robot>
"""
MORE = '<robot xmlns:xacro="http://www.ros.org/wiki/xacro"><xacro:property name="more" value="1"/></robot>\n'
CORNERS = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], float) * 100
FACES = np.array([[0, 2, 1], [0, 1, 3], [1, 2, 3], [0, 3, 2]])


def _stl() -> bytes:
    facets = b"".join(struct.pack("<12fH", 0, 0, 0, *CORNERS[face].ravel(), 0) for face in FACES)
    return b"test".ljust(80) + struct.pack("<I", len(FACES)) + facets


def _stl_text() -> str:
    lines = ["solid t"]
    for face in FACES:
        lines += ["facet normal 0 0 0", "outer loop"]
        lines += ["vertex {:g} {:g} {:g}".format(*CORNERS[i]) for i in face]
        lines += ["endloop", "endfacet"]
    return "\n".join([*lines, "endsolid t", ""])


def _obj(folder: Path) -> Path:
    _write(folder, "mesh.mtl", "newmtl red\nKd 1 0 0\nnewmtl blue\nKd 0 0 1\n")
    lines = ["mtllib mesh.mtl", *("v {:g} {:g} {:g}".format(*v) for v in CORNERS), "usemtl red"]
    lines += ["f {} {} {}".format(*(face + 1)) for face in FACES[:2]]
    lines += ["usemtl blue", *("f {}/1 {}/2 {}/3".format(*(face + 1)) for face in FACES[2:])]
    return _write(folder, "mesh.obj", "\n".join(lines) + "\n")


def _dae(folder: Path) -> Path:
    values, index = " ".join(f"{x:g}" for x in CORNERS.ravel()), " ".join(map(str, FACES.ravel()))
    return _write(
        folder,
        "mesh.dae",
        f"""<?xml version="1.0"?><COLLADA xmlns="http://www.collada.org/2005/11/COLLADASchema" version="1.4.1">
<asset><unit name="m" meter="1"/><up_axis>Z_UP</up_axis></asset>
<library_effects><effect id="e"><profile_COMMON><technique sid="t"><lambert><diffuse><color>1 0 0 1</color></diffuse>
</lambert></technique></profile_COMMON></effect></library_effects>
<library_materials><material id="m"><instance_effect url="#e"/></material></library_materials>
<library_geometries><geometry id="g"><mesh><source id="p"><float_array id="pa" count="12">{values}</float_array>
<technique_common><accessor source="#pa" count="4" stride="3"><param name="X" type="float"/>
<param name="Y" type="float"/><param name="Z" type="float"/></accessor></technique_common></source>
<vertices id="v"><input semantic="POSITION" source="#p"/></vertices>
<triangles count="4" material="m"><input semantic="VERTEX" source="#v" offset="0"/><p>{index}</p></triangles>
</mesh></geometry></library_geometries>
<library_visual_scenes><visual_scene id="s"><node><instance_geometry url="#g"><bind_material><technique_common>
<instance_material symbol="m" target="#m"/></technique_common></bind_material></instance_geometry></node></visual_scene>
</library_visual_scenes><scene><instance_visual_scene url="#s"/></scene></COLLADA>
""",
    )


def _robot(folder: Path) -> Path:
    _write(folder, "part.stl", _stl())
    _write(folder, "two.robot.yaml", SIDECAR)
    return _write(folder, "two.urdf", URDF)


def _xacro(folder: Path) -> Path:
    _write(folder, "more.xacro", MORE)
    return _write(folder, "two.xacro", XACRO)


def _load_robot(path: Path) -> Any:
    from kinema4d_ros.robot.description import robot_description
    from kinema4d_ros.robot.urdf import load_robot

    robot = load_robot(path)
    return robot, robot_description(robot)


def _load_mesh(path: Path) -> Any:
    from kinema4d_ros.robot.meshes import load_mesh

    return load_mesh(path)


def _surface(path: Path) -> Any:
    from kinema4d_ros.acquisition.mesh_files import read_mesh_file
    from kinema4d_ros.calibration.surfaces import load_surface

    return read_mesh_file(path), load_surface(path)


def _with_trimesh(suffix: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        import trimesh

        mesh = trimesh.Trimesh(CORNERS, FACES, process=False, vertex_colors=np.full((4, 4), 200, np.uint8))
        mesh.export(folder / f"mesh{suffix}")
        return folder / f"mesh{suffix}"

    return make


def small_camera(width: int = 12, height: int = 8) -> PinholeCamera:
    return PinholeCamera.look_at((1, -0.5, 0.7), (0.3, 0, 0), width=width, height=height, fov_y_deg=40)


def _camera(folder: Path) -> Path:
    from kinema4d_ros.calibration import save_camera
    from kinema4d_ros.calibration.extrinsics import Extrinsics, Residuals

    camera = small_camera()
    pose = Extrinsics(
        "base_link", "camera", camera.base_T_camera, "board", "2026-01-31", Residuals(0.3, 1.0, 0.9, 12), "x"
    )
    save_camera(folder / "camera.yaml", camera, pose)
    return folder / "camera.yaml"


def _camera_info(folder: Path) -> Path:
    from kinema4d_ros.calibration.camera_files import CameraInfo, write_camera_info

    info = CameraInfo(
        "c", 640, 480, np.array([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]]), "plumb_bob", (0.1, 0, 0, 0, 0)
    )
    write_camera_info(folder / "info.yaml", info)
    return folder / "info.yaml"


def _read_camera_info(path: Path) -> Any:
    from kinema4d_ros.calibration.camera_files import read_camera_info

    return read_camera_info(path)


def _calibrations(path: Path) -> Any:
    from kinema4d_ros.calibration.camera_files import read_camera

    return read_camera(path, base_frame="base_link")


def _pose(path: Path) -> Any:
    from kinema4d_ros.calibration.camera_files import read_pose

    return read_pose(path)


HANDEYE = """parameters: {name: demo, calibration_type: eye_on_base, robot_base_frame: base_link,
  robot_effector_frame: tool0, tracking_base_frame: camera_optical_frame, tracking_marker_frame: marker}
transform:
  translation: {x: 0.5, y: 0.1, z: 0.6}
  rotation: {x: 0.0, y: 0.0, z: 0.0, w: 1.0}
"""


def _extrinsics(folder: Path) -> Path:
    from kinema4d_ros.calibration.extrinsics import Extrinsics, Residuals, write_extrinsics

    pose = Extrinsics("base_link", "camera", np.eye(4), "board", "2026-01-31", Residuals(0.3, 1.0, 0.9, 12), "x")
    write_extrinsics(folder / "extrinsics.yaml", pose)
    return folder / "extrinsics.yaml"


def _pairs(path: Path) -> Any:
    from kinema4d_ros.calibration.inputs import read_pairs

    return read_pairs(path)


def picture(width: int = 12, height: int = 8, channels: int = 3, dtype: Any = np.uint8) -> Any:
    rng = np.random.default_rng(0)
    shape = (height, width, 3) if channels == 3 else (height, width)
    return rng.integers(0, 200, shape).astype(dtype)


def _image(suffix: str, **kind: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        return _write(folder, f"picture{suffix}", cv2.imencode(suffix, picture(**kind))[1].tobytes())

    return make


def _read_image(path: Path) -> Any:
    from kinema4d_ros.io.images import read_image

    return read_image(path)


def _depth(path: Path) -> Any:
    from kinema4d_ros.acquisition.views import read_depth

    return read_depth(path)


def _video(folder: Path) -> Path:
    from kinema4d_ros.io.video import VideoWriter

    with VideoWriter(folder / "video.mp4", 10.0, (32, 24)) as video:
        for i in range(4):
            video.write(np.full((24, 32, 3), 40 * i, np.uint8))
    return folder / "video.mp4"


def _frames(path: Path) -> Any:
    from kinema4d_ros.acquisition.frames import FrameSource, measure_frames

    return measure_frames(FrameSource(path))


def _trajectory(suffix: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        from kinema4d_ros.io.tables import write_trajectory

        times = np.linspace(0, 1, 5)
        write_trajectory(JointTrajectory(("j1", "j2"), times, np.stack([times, times**2], 1)), folder / f"plan{suffix}")
        return folder / f"plan{suffix}"

    return make


def _read_trajectory(path: Path) -> Any:
    from kinema4d_ros.io.trajectories import read_trajectory

    return read_trajectory(path)


def small_rollout() -> Rollout:
    camera = small_camera()
    rng = np.random.default_rng(0)
    shape = (2, camera.height, camera.width)
    xyz = rng.uniform(0.2, 1.0, (*shape, 3)).astype(np.float32)
    made_by = Provenance("composite", "plane", "a" * 64, "b" * 64, 7, 0.001, {"numpy": "2.0"})
    rgb = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
    made = Rollout(rgb, xyz, rng.random(shape) < 0.3, camera, np.array([0.0, 0.1]), made_by, plan_hash="c" * 64)
    other = made.copy()
    other.rgb[1, :2] ^= 1
    return replace(
        made,
        outcomes=(Outcome(0.8, "lifted", ((0.05, "touched"),)), Outcome(0.2, "slips")),
        alternatives=(patches_between(made, other),),
        basis=np.ones(shape, np.uint8),
        unknowns=("it is dark",),
    )


def _rollout(folder: Path) -> Path:
    small_rollout().save(folder / "rollout")
    return folder / "rollout"


def _sign_rollout(folder: Path) -> None:
    path = folder / "meta.json"
    meta = json.loads(path.read_bytes())
    meta["sha256"] = {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in meta["sha256"]}
    path.unlink()
    path.write_text(json.dumps(meta))


def _pointmaps(lossless: bool) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        from kinema4d_ros.core.pointmap import PointmapSequence
        from kinema4d_ros.io.store import save_pointmaps

        camera = small_camera()
        depth = np.full((2, camera.height, camera.width), 0.7, np.float32)
        ids = np.ones(depth.shape, np.uint8)
        xyz = (camera.rays() * depth[..., None]).astype(np.float32)
        sequence = PointmapSequence(xyz, ids, camera, np.array([0.0, 0.1]), np.zeros((*depth.shape, 3), np.uint8))
        save_pointmaps(folder / "pointmaps", sequence, lossless=lossless)
        return folder / "pointmaps"

    return make


def _load_pointmaps(path: Path) -> Any:
    from kinema4d_ros.io.store import load_pointmaps

    return load_pointmaps(path)


def _store(folder: Path) -> Path:
    from kinema4d_ros.evaluation.store import TrialStore
    from kinema4d_ros.evaluation.trial import LabOutcome, ModelOutcome, Trial, TrialRecord

    store = TrialStore(folder / "trials")
    store.agree({"policies": ["expert"], "runs": 2, "scenarios": ["canonical"], "models": {"nano": {}}})
    for seed in range(2):
        lab = LabOutcome(True, 1.0, 0.09, 4.2, 3, 1.5)
        store.add(TrialRecord(Trial("expert", "canonical", seed), lab, {"nano/open": ModelOutcome(False, 0.2, 0.8)}))
    return folder / "trials"


def _load_store(path: Path) -> Any:
    from kinema4d_ros.evaluation.store import TrialStore

    store = TrialStore(path)
    return store.settings(), store.records()


COLMAP_CAMERAS = "# cameras\n1 PINHOLE 640 480 500 501 320 240\n2 OPENCV 640 480 500 501 320 240 0.1 0.01 0 0\n"
COLMAP_IMAGES = "# images\n1 1 0 0 0 0.1 0.2 0.3 1 a.png\n1 2 3\n2 0.7 0.1 0.1 0.1 1 2 3 2 b.png\n\n"


def _colmap(folder: Path) -> Path:
    _write(folder, "colmap/cameras.txt", COLMAP_CAMERAS)
    return _write(folder, "colmap/images.txt", COLMAP_IMAGES).parent


def _transforms(folder: Path) -> Path:
    frames = [{"file_path": f"images/{n}.png", "transform_matrix": np.eye(4).tolist()} for n in "ab"]
    lens = {"fl_x": 500.0, "fl_y": 501.0, "cx": 320.0, "cy": 240.0, "w": 640, "h": 480, "k1": 0.1}
    return _write(folder, "transforms.json", json.dumps({**lens, "frames": frames}))


def _poses(path: Path) -> Any:
    from kinema4d_ros.acquisition.views import read_pose_file

    return read_pose_file(path)


def _views(folder: Path) -> Path:
    from kinema4d_ros.acquisition.stages import write_json
    from kinema4d_ros.acquisition.views import cameras_document
    from kinema4d_ros.io.images import write_image

    (folder / "poses").mkdir()
    write_json(
        folder / "poses" / "cameras.json", cameras_document([("a", 0, small_camera()), ("b", 0, small_camera())])
    )
    for name in "ab":
        write_image(folder / "poses" / "images" / f"{name}.png", picture())
    return folder / "poses"


def _load_views(path: Path) -> Any:
    from kinema4d_ros.acquisition.views import load_views

    return load_views(path)


def _wire(folder: Path) -> Path:
    from kinema4d_ros.policies.wire import pack

    message = {
        "kind": "act",
        "time_s": 0.5,
        "joints": np.zeros(7),
        "image": picture(),
        "names": ["a", "b"],
        "deep": {"x": 1},
    }
    return _write(folder, "message.msgpack", pack(message))


def _unpack(path: Path) -> Any:
    from kinema4d_ros.policies.wire import unpack

    return unpack(path.read_bytes())


def _demo(folder: Path) -> Path:
    shape = {"image": picture()[None], "state": np.zeros((1, 7), np.float32), "action": np.zeros((1, 7), np.float32)}
    np.savez_compressed(folder / "episode.npz", **shape, lifted=np.array(True))
    return folder / "episode.npz"


def _read_demo(path: Path) -> Any:
    from kinema4d_ros.policies.demos import read_demo

    return read_demo(path)


def _yaml(name: str, text: str) -> Callable[[Path], Path]:
    return lambda folder: _write(folder, name, text)


PAIRS = "recon:\n- [0.1, 0.2, 0.3]\n- [1, 2, 3]\n- [0, 1, 0]\nbase:\n- [0.1, 0.2, 0.3]\n- [1, 2, 3]\n- [0, 1, 0]\n"

CORE = (
    Reader("urdf", _robot, _load_robot, files=("*.urdf",)),
    Reader("robot sidecar", _robot, _load_robot, files=("*.yaml",)),
    Reader("robot's mesh", _robot, _load_robot, files=("*.stl",)),
    Reader("xacro", _xacro, _load_robot, slow=True),
    Reader("stl", lambda f: _write(f, "mesh.stl", _stl()), _load_mesh),
    Reader("stl text", lambda f: _write(f, "mesh.stl", _stl_text()), _load_mesh),
    Reader("obj and mtl", _obj, _load_mesh),
    Reader("collada", _dae, _load_mesh),
    Reader("ply", _with_trimesh(".ply"), _surface),
    Reader("glb", _with_trimesh(".glb"), _surface),
    Reader("camera file", _camera, _calibrations),
    Reader("camera info", _camera_info, _read_camera_info),
    Reader("easy_handeye2", _yaml("hand.calib", HANDEYE), _pose),
    Reader("extrinsics", _extrinsics, _pose),
    Reader("picked pairs", _yaml("pairs.yaml", PAIRS), _pairs),
    Reader("png", _image(".png"), _read_image),
    Reader("jpeg", _image(".jpg"), _read_image),
    Reader("depth png", _image(".png", channels=1, dtype=np.uint16), _depth),
    Reader("video", _video, _frames),
    Reader("csv plan", _trajectory(".csv"), _read_trajectory),
    Reader("json plan", _trajectory(".json"), _read_trajectory),
    Reader("npz plan", _trajectory(".npz"), _read_trajectory),
    Reader("rollout folder", _rollout, Rollout.load, repair=_sign_rollout, files=("meta.json", "*.png", "*.tiff")),
    Reader("pointmaps, depth", _pointmaps(False), _load_pointmaps),
    Reader("pointmaps, lossless", _pointmaps(True), _load_pointmaps),
    Reader("trial store", _store, _load_store),
    Reader("colmap poses", _colmap, _poses),
    Reader("transforms poses", _transforms, _poses),
    Reader("acquisition views", _views, _load_views),
    Reader("policy message", _wire, _unpack, names_file=False),
    Reader("demonstration", _demo, _read_demo),
)
