"""Objects in one image by a small network: `load_detector()` loads the weights shipped with the package.

>>> found = load_detector().detect(image, camera, robot_mask, table_height_m=0.0)   # doctest: +SKIP
>>> [(o.center, o.top) for o in found.objects]                                      # doctest: +SKIP
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from kinema4d_model.checkpoints.manifest import file_sha256
from kinema4d_model.checkpoints.modules import load_module
from kinema4d_model.detection.grouping import Votes, group_votes
from kinema4d_model.detection.network import STRIDE, UNIT_M, DetectorNet
from kinema4d_model.pipeline.lifting.geometry import level_frame, view_plane
from kinema4d_model.pipeline.lifting.lifter import STEM, network_input, require_inputs
from kinema4d_model.shipped import DETECTOR as WEIGHTS
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.generators.draft.detection import Detection
from kinema4d_ros.io.files import read_json

__all__ = ["WEIGHTS", "LearnedDetector", "load_detector"]

MOST_PIXELS = 480 * 720
"""Larger images are reduced before they are given to the network."""
FINEST_M = 0.0014
"""Smallest footprint of a pixel, metres: images with finer pixels are reduced to what the network was trained on."""


class LearnedDetector:
    """`Detector` that uses a `DetectorNet`.

    Args:
        network: votes for every pixel.
        sha256: of the weights, for provenance.
    """

    def __init__(self, network: DetectorNet, sha256: str = "") -> None:
        self.network = network.eval().to(memory_format=torch.channels_last)
        self.sha256 = sha256

    def detect(
        self,
        image: NDArray[np.uint8],
        camera: PinholeCamera,
        robot_mask: NDArray[np.bool_] | None = None,
        table_height_m: float = 0.0,
    ) -> Detection:
        """Find the objects of an image; see `Detector.detect`."""
        robot = require_inputs(image, camera, robot_mask, table_height_m)
        size = _working_size(camera, table_height_m)
        small, mask = image, robot
        if size != image.shape[:2]:
            small = np.asarray(cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA), np.uint8)
            share = cv2.resize(robot.astype(np.float32), size[::-1], interpolation=cv2.INTER_AREA)
            mask = np.asarray(share) > 0.5
        votes = self._predict(small, camera.scaled(size[1], size[0]), mask, table_height_m)
        level_T_base = level_frame(camera, table_height_m)
        faces = votes.faces
        objects = group_votes(votes, level_T_base, (camera.height, camera.width))
        if size != image.shape[:2]:
            faces = np.asarray(cv2.resize(faces, (camera.width, camera.height), interpolation=cv2.INTER_LINEAR))
        faces = faces.copy()
        faces[robot] = (1.0, 0.0, 0.0)
        return Detection(tuple(objects), faces, level_T_base[0, :2].copy())

    @torch.inference_mode()
    def _predict(
        self, image: NDArray[np.uint8], camera: PinholeCamera, robot: NDArray[np.bool_], table_height_m: float
    ) -> Votes:
        view = view_plane(camera, table_height_m)
        x = network_input(image, view, robot)
        rows, columns = image.shape[:2]
        # Pad to whole cells; the padding is no table.
        padding = ((0, 0), (0, -rows % STRIDE), (0, -columns % STRIDE))
        x = np.pad(x, padding)
        weight = next(self.network.parameters())
        batch = torch.from_numpy(x)[None].to(weight.device, weight.dtype).contiguous(memory_format=torch.channels_last)
        out = self.network(batch)
        half = (slice(0, (rows + 1) // 2), slice(0, (columns + 1) // 2))
        values, scale, shapes = (
            np.moveaxis(t[0].float().cpu().numpy(), 0, -1)[half]
            for t in (out.values, out.log_scale.exp(), out.classes.softmax(1))
        )
        faces = np.moveaxis(out.faces.softmax(1)[0].float().cpu().numpy(), 0, -1)[:rows, :columns]
        table = np.moveaxis(view.channels[3:5], 0, -1)[::2, ::2]
        met = np.isfinite(view.depth_m) & ~robot
        return Votes(UNIT_M * values, UNIT_M * scale, shapes, faces, table, met[::2, ::2])


def _working_size(camera: PinholeCamera, table_height_m: float) -> tuple[int, int]:
    """Choose (rows, columns) of the network's input: the image's size, or smaller."""
    footprint = float(np.nanmedian(view_plane(camera, table_height_m).footprint_m))
    pixels = camera.width * camera.height
    scale = min(1.0, math.sqrt(MOST_PIXELS / pixels), footprint / FINEST_M)
    rows, columns = (max(STRIDE, round(scale * side)) for side in (camera.height, camera.width))
    return rows, columns


@lru_cache(maxsize=4)
def _load(folder: Path) -> LearnedDetector:
    path = folder / "config.json"
    if not path.is_file():
        raise FileFormatError(
            f"{folder} holds no detector: config.json is missing",
            expected="a folder written by `kinema4d train --stage detector`",
            hint="train one (docs/detection.md), or measure depth: with it no detector is needed",
            code=ErrorCode.FILE_MISSING,
        )
    document = read_json(path)
    try:
        name = document["_class_name"]
        network = DetectorNet.from_config({k: v for k, v in document.items() if not k.startswith("_")})
    except Exception as error:  # a network with inconsistent sizes can raise any exception
        raise FileFormatError(
            f"{path} is not the config of a detector: {error!r}"[:300], expected="the config of a DetectorNet"
        ) from None
    if name != DetectorNet.__name__:
        raise FileFormatError(f"{path} is the config of a {name!r}"[:300], expected=DetectorNet.__name__)
    load_module(network, folder, STEM, dtype=torch.float32)
    return LearnedDetector(network, file_sha256(folder / f"{STEM}.safetensors"))


def load_detector(path: str | Path | None = None) -> LearnedDetector:
    """Load the detector of a folder, by default that of the package's `weights/detector`; cached per process."""
    return _load(WEIGHTS if path is None else Path(path).resolve())
