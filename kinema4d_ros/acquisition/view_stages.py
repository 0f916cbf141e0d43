"""View stages of an acquisition: frames from the videos, camera poses, masks of the robot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinema4d_ros.acquisition.align import place_camera
from kinema4d_ros.acquisition.drawing import draw_mesh, frame_sheet, mask_sheet, mesh_scene, pose_sheet
from kinema4d_ros.acquisition.frames import FrameSource, choose_frames, measure_frames, require_around
from kinema4d_ros.acquisition.hull import Outlines, find_volume, visual_hull
from kinema4d_ros.acquisition.options import FLOOR_WORLD, Acquisition
from kinema4d_ros.acquisition.stages import read_json, write_json
from kinema4d_ros.acquisition.views import (
    BoardLocator,
    FileLocator,
    View,
    cameras_document,
    load_lenses,
    load_views,
    read_depth,
    read_pose_file,
)
from kinema4d_ros.calibration.recon import align_pairs
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import AssetError, ErrorCode, FileFormatError
from kinema4d_ros.io.files import replacing_file
from kinema4d_ros.io.images import read_image, write_image
from kinema4d_ros.io.png import encode_png
from kinema4d_ros.kinematics.forward import forward_all
from kinema4d_ros.render import Scene, render_poses
from kinema4d_ros.robot.model import Robot

__all__ = [
    "agreed_prompts",
    "drawn_prompts",
    "make_frames",
    "make_masks",
    "make_poses",
    "masks_from_folder",
    "require_masks",
]

# Masks of the robot in every view: from a folder, or from a segmenter prompted with the expected robot.

Mask = NDArray[np.bool_]
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
LEAST = 5e-4
MOST = 0.9
"""Valid range of the fraction of the image covered by a mask."""


def masks_from_folder(folder: Path, views: Sequence[View], lenses: Sequence[PinholeCamera]) -> list[Mask]:
    """Read masks (robot bright) named like the frames, with lens distortion, and rectify them."""
    masks = []
    for view, lens in zip(views, lenses, strict=True):
        files = [folder / f"{view.name}{suffix}" for suffix in _SUFFIXES]
        file = next((f for f in files if f.is_file()), None)
        if file is None:
            raise FileFormatError(
                f"{folder} has no mask for frame {view.name}",
                expected=f"{files[0].name}, the robot in white",
                hint="see 1_frames for the chosen frames",
                code=ErrorCode.FILE_MISSING,
            )
        picture = read_image(file)
        if picture.shape[:2] != (lens.height, lens.width):
            raise AssetError(
                f"mask {file.name} is {picture.shape[1]} x {picture.shape[0]}",
                expected=f"{lens.width} x {lens.height}, the size of the frames",
                code=ErrorCode.CAMERA_BAD_SIZE,
            )
        masks.append(np.asarray(lens.rectify(picture.max(axis=2), "linear") > 127))
    return masks


def drawn_prompts(
    robot: Robot, q: NDArray[np.float64], views: Sequence[View], base_T_world: NDArray[np.float64], scale: float = 1.0
) -> list[Mask]:
    """Render the description in every view as (H, W) bool masks; q is (K, J), one row per orbit.

    `scale` is metres per world unit.
    """
    scene, poses = Scene.from_robot(robot), forward_all(robot, q)
    return [
        render_poses(scene, poses[v.orbit][None], place_camera(v.camera, base_T_world, scale)).mask[0] for v in views
    ]


def agreed_prompts(masks: Sequence[Mask], views: Sequence[View], floor: NDArray[np.float64] | None) -> list[Mask]:
    """Render in every view, as (H, W) bool masks, the hull on which all but a seventh of the masks agree.

    It includes parts that a few masks miss and excludes background that a few masks contain, so it is a better prompt
    than any single mask.
    """
    misses = min(4, max(1, len(views) // 7))
    seen = [replace(v, mask=m) for v, m in zip(views, masks, strict=True)]
    low, high = find_volume(seen, Outlines.of(seen), misses=misses)
    hull = visual_hull(seen, float((high - low).max()) / 150, misses=misses, floor=floor)
    scene = mesh_scene(hull)
    return [draw_mesh(scene, v.camera).mask[0] for v in views]


def require_masks(masks: Sequence[Mask], views: Sequence[View]) -> None:
    """Reject masks that are empty or cover nearly the whole image; the error names the frame."""
    for mask, view in zip(masks, views, strict=True):
        share = float(mask.mean())
        if share < LEAST:
            raise AssetError(
                f"the mask of frame {view.name} is empty: {int(mask.sum())} of {mask.size} pixels",
                expected="the robot in every frame",
                hint="check 1_frames, or provide masks with --masks",
            )
        if share > MOST:
            raise AssetError(
                f"the mask of frame {view.name} covers {share:.0%} of the image",
                expected="only the robot",
                hint="check that the mask is not inverted: bright pixels are the robot",
            )


if TYPE_CHECKING:
    from kinema4d_ros.segmentation.protocol import RobotSegmenter


def _locator(job: Acquisition) -> BoardLocator | FileLocator:
    if job.board is not None and job.camera is not None:
        return BoardLocator(job.board, job.camera)
    if job.poses is None:
        raise AssetError("neither a board nor poses were given", expected="one of the two")
    return FileLocator(read_pose_file(job.poses))


def make_frames(job: Acquisition, folder: Path) -> None:
    """Write sharp frames from all around as PNGs, and `frames.json`."""
    chosen: list[dict[str, Any]] = []
    images = []
    for orbit, path in enumerate(job.sources):
        source, locate = FrameSource(path), _locator(job)
        with job.bars(f"frames {path.name}") as progress:
            measured = measure_frames(source, locate, progress)
        # Check the blur first: in a blurred video the board is not detected either.
        picks = choose_frames(measured, job.views, job.max_blur_px)
        known = np.asarray(np.isfinite(measured.world_T_camera).all(axis=(1, 2)))
        if not known.any():
            raise locate.refuse()
        picks = picks[known[picks]]
        poses, prefix = measured.world_T_camera[picks], "" if len(job.sources) == 1 else f"{orbit}_"
        require_around(poses, [source.names[i] for i in measured.position[picks]])
        for k, (i, image) in enumerate(source.read(measured.position[picks].tolist())):
            entry = {
                "name": f"{prefix}{source.names[i]}",
                "orbit": orbit,
                "source": source.names[i],
                "blur_px": round(float(measured.blur_px[picks[k]]), 3),
                "world_T_camera": poses[k].tolist(),
            }
            write_image(folder / f"{entry['name']}.png", image)
            images.append(image)
            chosen.append(entry)
    write_json(folder / "frames.json", chosen)
    write_image(folder / "sheet.png", frame_sheet(images, [c["name"] for c in chosen], [c["blur_px"] for c in chosen]))


def make_poses(job: Acquisition, frames: Path, folder: Path) -> None:
    """Write rectified images to `images/`, their cameras to `cameras.json`, and depth (if any) to `depth/`."""
    locate = _locator(job)
    cameras: list[tuple[str, int, PinholeCamera]] = []
    entries = read_json(frames / "frames.json")
    with job.bars("poses") as progress:
        for done, entry in enumerate(entries):
            name = entry["name"]
            image = read_image(frames / f"{name}.png")
            camera = locate.camera_of(entry["source"]).posed(np.array(entry["world_T_camera"]))
            write_image(folder / "images" / f"{name}.png", camera.rectify(image))
            cameras.append((name, entry["orbit"], camera))
            if job.depth is not None:
                depth = camera.rectify(np.nan_to_num(read_depth(job.depth / f"{name}.png")), "nearest")
                with replacing_file(folder / "depth" / f"{name}.png") as temporary:
                    temporary.write_bytes(encode_png(np.rint(depth * 1e4).astype(np.uint16)))
            progress(done + 1, len(entries))
    write_json(folder / "cameras.json", cameras_document(cameras))
    views = load_views(folder)
    distance = float(np.median([np.linalg.norm(v.camera.base_T_camera[:3, 3]) for v in views]))
    write_image(folder / "sheet.png", pose_sheet(views, 0.1 * distance))


def _segment(
    job: Acquisition,
    segmenter: RobotSegmenter,
    views: list[View],
    prompts: list[NDArray[np.bool_]] | None,
    name: str,
) -> list[NDArray[np.bool_]]:
    """Segment all views with one segmenter, prompted by a mask for each view, or else by the job's text."""
    from kinema4d_ros.segmentation.prompt import Prompt

    masks = []
    with job.bars(name) as progress:
        for i, view in enumerate(views):
            prompt = Prompt(text=job.text) if prompts is None else Prompt(mask=prompts[i])
            masks.append(segmenter.segment(view.image, prompt).masks)
            progress(i + 1, len(views))
    return masks


def _measured_place(job: Acquisition) -> tuple[NDArray[np.float64], float]:
    """Return `base_T_world` and metres per world unit, before the refinement by a mesh."""
    if job.base_T_world is not None:
        return job.base_T_world, 1.0
    if job.pairs is None:
        raise AssetError("the pose of the robot's base is unknown", expected="a measured pose, or pairs")
    return align_pairs(*job.pairs, similarity=job.similarity)


def make_masks(job: Acquisition, poses: Path, folder: Path) -> None:
    """Write one rectified PNG per view, the robot in white."""
    views = load_views(poses)
    if job.masks is not None:
        masks = masks_from_folder(job.masks, views, load_lenses(poses))
    elif job.segmenter is not None:
        prompts = None
        if not job.text:
            base_T_world, scale = _measured_place(job)
            prompts = drawn_prompts(job.robot, job.q, views, base_T_world, scale)
        masks = _segment(job, job.segmenter, views, prompts, "masks")
        again = job.again
        for turn in range(job.rounds if again is not None else 0):
            require_masks(masks, views)
            agreed: dict[int, NDArray[np.bool_]] = {}
            for orbit in range(len(job.sources)):
                at = [i for i, v in enumerate(views) if v.orbit == orbit]
                floor = FLOOR_WORLD if job.floor and job.board is not None else None
                found = agreed_prompts([masks[i] for i in at], [views[i] for i in at], floor)
                agreed |= dict(zip(at, found, strict=True))
            masks = _segment(
                job, again or job.segmenter, views, [agreed[i] for i in range(len(views))], f"masks, round {turn + 2}"
            )
    else:
        raise AssetError("neither masks nor a segmenter were given", expected="a folder of masks or a segmenter")
    require_masks(masks, views)
    for view, mask in zip(views, masks, strict=True):
        grey = np.where(mask, 255, 0).astype(np.uint8)
        write_image(folder / f"{view.name}.png", np.repeat(grey[..., None], 3, axis=2))
    write_image(folder / "sheet.png", mask_sheet([replace(v, mask=m) for v, m in zip(views, masks, strict=True)]))
