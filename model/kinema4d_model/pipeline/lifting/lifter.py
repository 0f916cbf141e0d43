"""Depth from one image by a small network: `load_lifter()` loads the weights shipped with the package.

>>> lifter = load_lifter()
>>> lifted = lifter.lift(image, camera, robot_mask, table_height_m=0.0)   # doctest: +SKIP
>>> lifted.depth_m[lifted.thing > 0.5]                                    # doctest: +SKIP
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from kinema4d_model.checkpoints.manifest import file_sha256
from kinema4d_model.checkpoints.modules import load_module
from kinema4d_model.pipeline.lifting.geometry import MAX_RANGE_M, LiftedDepth, PlaneView, view_plane
from kinema4d_model.pipeline.lifting.network import HEIGHT_UNIT_M, STRIDE, HeightNet, probability
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CameraError, ErrorCode, FileFormatError, GeneratorError
from kinema4d_ros.io.files import read_json

__all__ = [
    "WEIGHTS",
    "LearnedLifter",
    "guided_upsample",
    "load_lifter",
    "network_input",
    "require_inputs",
    "upsample_within",
    "working_size",
]

# Upsampling from the network's size to the image's: edges come from the image, not from the small map.

Floats = NDArray[np.float32]


def guided_upsample(
    values: Floats,
    small: NDArray[np.uint8],
    large: NDArray[np.uint8],
    known: NDArray[np.bool_] | None = None,
    *,
    radius: int = 3,
    softness: float = 0.05,
) -> Floats:
    """Upsample (h, w) values to (H, W); each neighbourhood is a linear function of the image's three colours.

    Also useful without a change of size: it moves blurred borders onto the image's edges.

    Args:
        values: at the small size.
        small: (h, w, 3) uint8, the image at that size.
        large: (H, W, 3) uint8, the image.
        known: (h, w) where values are valid; None = everywhere. The others are filled from their neighbours.
        radius: of a neighbourhood, pixels of the small size.
        softness: contrast, 0 to 1, below which the image counts as uniform.
    """
    weight = np.full(values.shape, 1.0, np.float32) if known is None else known.astype(np.float32) + 1e-4
    total = _mean(weight, radius)

    def mean(x: NDArray[Any]) -> Floats:
        extra = (...,) + (None,) * (x.ndim - 2)
        return np.asarray(_mean(x * weight[extra], radius) / total[extra])

    guide = small.astype(np.float32) / 255
    mean_guide, mean_values = mean(guide), mean(values)
    covariance = mean(guide[..., :, None] * guide[..., None, :]) - mean_guide[..., :, None] * mean_guide[..., None, :]
    together = mean(guide * values[..., None]) - mean_guide * mean_values[..., None]
    slope = np.linalg.solve(covariance + softness**2 * np.eye(3, dtype=np.float32), together[..., None])[..., 0]
    offset = mean_values - (slope * mean_guide).sum(-1)
    full = _resize(mean(np.concatenate([slope, offset[..., None]], -1)), large.shape)
    return np.asarray((full[..., :3] * (large.astype(np.float32) / 255)).sum(-1) + full[..., 3])


def upsample_within(values: Floats, weight: Floats, shape: tuple[int, ...]) -> Floats:
    """Upsample (h, w) values to (H, W), mixed only where `weight` is large: table values do not bleed into objects."""
    both = _resize(np.stack([values * weight, weight], -1), shape)
    return np.asarray(both[..., 0] / np.maximum(both[..., 1], 1e-6))


def _mean(values: NDArray[Any], radius: int) -> Floats:
    side = 2 * radius + 1
    planes = values.reshape(*values.shape[:2], -1).astype(np.float32)
    return np.asarray(cv2.blur(planes, (side, side), borderType=cv2.BORDER_REFLECT)).reshape(values.shape)


def _resize(values: Floats, shape: tuple[int, ...]) -> Floats:
    return np.asarray(cv2.resize(values, (shape[1], shape[0]), interpolation=cv2.INTER_LINEAR))


WEIGHTS = Path(__file__).resolve().parents[2] / "weights" / "lifter"
STEM = "diffusion_pytorch_model"
WORKING_PIXELS = 96 * 144
MOST_PIXELS = 16 * WORKING_PIXELS
COARSEST_M = 0.004
"""Largest footprint of a pixel on the table, metres: objects of 3 cm need several pixels."""
HIGHEST = 0.9
"""Upper limit of lifted heights, as a share of the camera's height."""


class LearnedLifter:
    """`Lifter` that uses a `HeightNet`.

    Args:
        network: predicts where objects stand and how high.
        sha256: of the weights, for provenance.
        max_range_m: maximum distance from the camera at which the plane is used.
    """

    def __init__(self, network: HeightNet, sha256: str = "", max_range_m: float = MAX_RANGE_M) -> None:
        self.network = network.eval().to(memory_format=torch.channels_last)
        self.sha256 = sha256
        self._max_range_m = max_range_m

    def lift(
        self,
        image: NDArray[np.uint8],
        camera: PinholeCamera,
        robot_mask: NDArray[np.bool_] | None = None,
        table_height_m: float = 0.0,
    ) -> LiftedDepth:
        """Estimate the depth of an image; see `Lifter.lift`."""
        robot = require_inputs(image, camera, robot_mask, table_height_m)
        view = view_plane(camera, table_height_m, max_range_m=self._max_range_m)
        met = np.isfinite(view.depth_m)
        if not met.any():
            raise CameraError(
                f"no pixel of the camera meets the table within {self._max_range_m:g} m",
                expected="a camera that looks at the table",
                hint="check base_T_camera and table_height_m",
            )
        height, width = working_size(view, camera)
        small_image, small_view, small_robot = image, view, robot
        if (height, width) != image.shape[:2]:
            way = cv2.INTER_AREA if height < image.shape[0] else cv2.INTER_LINEAR
            small_image = np.asarray(cv2.resize(image, (width, height), interpolation=way), np.uint8)
            small_view = view_plane(camera.scaled(width, height), table_height_m, max_range_m=self._max_range_m)
            share = cv2.resize(robot.astype(np.float32), (width, height), interpolation=way)
            small_robot = np.asarray(share) > 0.5
        thing, height_m = self._predict(small_image, small_view, small_robot)
        if small_image is not image:
            height_m = upsample_within(height_m, thing**2 + 1e-4, image.shape)
        thing = guided_upsample(thing, small_image, image, ~small_robot & np.isfinite(small_view.depth_m))
        thing = np.where(met & ~robot, np.clip(thing, 0.0, 1.0), 0.0).astype(np.float32)
        lifted = view.depth_of(np.clip(height_m, 0.0, HIGHEST * view.camera_height_m))
        return LiftedDepth(np.where(thing > 0.5, lifted, view.depth_m).astype(np.float32), thing)

    @torch.inference_mode()
    def _predict(
        self, image: NDArray[np.uint8], view: PlaneView, robot: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Predict probability and height in metres, both (h, w) float32."""
        weight = next(self.network.parameters())
        x = torch.from_numpy(network_input(image, view, robot))[None].to(weight.device, weight.dtype)
        logit, height = self.network(x.contiguous(memory_format=torch.channels_last))
        return probability(logit[0].float()).cpu().numpy(), HEIGHT_UNIT_M * height[0].float().cpu().numpy()


@lru_cache(maxsize=4)
def _load(folder: Path) -> LearnedLifter:
    path = folder / "config.json"
    if not path.is_file():
        raise FileFormatError(
            f"{folder} holds no lifter: config.json is missing",
            expected="a folder written by `kinema4d train-lifter`, or no path for the weights of the package",
            code=ErrorCode.FILE_MISSING,
        )
    document = read_json(path)
    try:
        name = document["_class_name"]
        network = HeightNet.from_config({k: v for k, v in document.items() if not k.startswith("_")})
    except Exception as error:  # a network with inconsistent sizes can raise any exception
        raise FileFormatError(
            f"{path} is not the config of a lifter: {error!r}"[:300], expected="the config of a HeightNet"
        ) from None
    if name != HeightNet.__name__:
        raise FileFormatError(f"{path} is the config of a {name!r}"[:300], expected=HeightNet.__name__)
    load_module(network, folder, STEM, dtype=torch.float32)
    return LearnedLifter(network, file_sha256(folder / f"{STEM}.safetensors"))


def load_lifter(path: str | Path | None = None) -> LearnedLifter:
    """Load the lifter of a folder, or the one shipped with the package; cached per process."""
    return _load(WEIGHTS if path is None else Path(path).resolve())


def working_size(view: PlaneView, camera: PinholeCamera) -> tuple[int, int]:
    """Choose (height, width) of the network's input: the image's aspect, multiples of 8, about 96 x 144 pixels.

    A wide view uses a larger size, so that a pixel shows no more than 4 mm of the table; never larger than the image.
    """
    pixels = camera.width * camera.height
    scale = math.sqrt(WORKING_PIXELS / pixels)
    wanted = float(np.nanmedian(view.footprint_m)) / COARSEST_M
    scale = max(scale, min(wanted, 1.0, math.sqrt(MOST_PIXELS / pixels)))
    height, width = (max(2, round(scale * side / STRIDE)) * STRIDE for side in (camera.height, camera.width))
    return height, width


def network_input(image: NDArray[np.uint8], view: PlaneView, robot: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Stack the network input (12, H, W) float32: colours in [-1, 1], the plane's channels, the robot mask."""
    colours = np.moveaxis(image, -1, 0).astype(np.float32) / 127.5 - 1.0
    return np.concatenate([colours, view.channels, robot[None].astype(np.float32)])


def require_inputs(
    image: NDArray[np.uint8], camera: PinholeCamera, robot_mask: NDArray[np.bool_] | None, table_height_m: float
) -> NDArray[np.bool_]:
    """Validate the inputs and return the robot's mask, all False without one."""
    shape = (camera.height, camera.width)
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.shape != (*shape, 3):
        found = f"{image.dtype} of shape {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise _refuse(f"the image is {found}", f"uint8 RGB of shape {(*shape, 3)}, the camera's size")
    if camera.has_distortion:
        raise _refuse("the camera has lens distortion", "camera.rectified() and the image that camera.rectify() gives")
    if not math.isfinite(table_height_m):
        raise _refuse(f"table_height_m is {table_height_m}", "a finite number of metres above the robot's base")
    if robot_mask is None:
        return np.zeros(shape, np.bool_)
    if not isinstance(robot_mask, np.ndarray) or robot_mask.dtype != np.bool_ or robot_mask.shape != shape:
        mask = robot_mask
        found = f"{mask.dtype} of shape {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
        raise _refuse(f"the robot's mask is {found}", f"bool of shape {shape}, or None")
    return robot_mask


def _refuse(what: str, expected: str) -> GeneratorError:
    return GeneratorError(what, expected=expected, code=ErrorCode.GENERATOR_BAD_REQUEST)
