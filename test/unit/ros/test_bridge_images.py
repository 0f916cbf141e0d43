"""Image messages: every encoding, byte order and padding; wrong sizes are refused; no needless copies."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sensor_msgs.msg import Image

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.ros.messages.images import (
    ImageError,
    decode_rgb,
    depth_from_image,
    encode_rgb,
    image_from_array,
    image_to_array,
    rgb_from_image,
)
from kinema4d_ros.ros.messages.stamps import header

HEADER = header(1_500_000_000, "camera")
ENCODINGS = {
    "rgb8": (np.uint8, 3),
    "bgr8": (np.uint8, 3),
    "rgba8": (np.uint8, 4),
    "bgra8": (np.uint8, 4),
    "mono8": (np.uint8, 1),
    "16UC1": (np.uint16, 1),
    "32FC1": (np.float32, 1),
}


def pixels(encoding: str, height: int, width: int, seed: int = 0) -> np.ndarray:
    dtype, channels = ENCODINGS[encoding]
    shape = (height, width) if channels == 1 else (height, width, channels)
    values = np.random.default_rng(seed).integers(0, 256 if dtype == np.uint8 else 65536, shape)
    return values.astype(dtype)


@given(st.sampled_from(sorted(ENCODINGS)), st.integers(1, 9), st.integers(1, 9), st.integers(0, 7), st.booleans())
def test_pixels_survive_padding_and_byte_order(encoding: str, height: int, width: int, padding: int, big: bool) -> None:
    image = pixels(encoding, height, width)
    message = image_from_array(image, encoding, HEADER)
    assert (message.header.frame_id, message.height, message.width) == ("camera", height, width)
    np.testing.assert_array_equal(image_to_array(message), image)
    # The same image with the layout of another driver.
    other = image.astype(image.dtype.newbyteorder(">" if big else "<"))
    rows = other.reshape(height, -1).view(np.uint8).reshape(height, -1)
    padded = np.hstack([rows, np.full((height, padding), 0xAB, np.uint8)])
    message.step, message.is_bigendian = padded.shape[1], int(big)
    message.data = array("B", padded.tobytes())
    read = image_to_array(message)
    assert read.dtype == image.dtype
    np.testing.assert_array_equal(read, image)


def test_an_image_is_read_without_a_copy() -> None:
    message = image_from_array(pixels("rgb8", 4, 5), "rgb8", HEADER)
    view = rgb_from_image(message)
    message.data[0] = (message.data[0] + 1) % 256
    assert view[0, 0, 0] == message.data[0]


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8", "rgba8", "bgra8", "mono8"])
def test_colours_are_converted_to_rgb(encoding: str) -> None:
    image = pixels(encoding, 3, 4)
    planes = {
        "rgb8": lambda p: p,
        "bgr8": lambda p: p[..., ::-1],
        "rgba8": lambda p: p[..., :3],
        "bgra8": lambda p: p[..., 2::-1],
        "mono8": lambda p: np.repeat(p[..., None], 3, axis=-1),
    }
    rgb = rgb_from_image(image_from_array(image, encoding, HEADER), width=4, height=3)
    np.testing.assert_array_equal(rgb, planes[encoding](image))


def test_depth_is_in_metres_with_nan_for_no_measurement() -> None:
    millimetres = np.array([[0, 1, 65535]], np.uint16)
    np.testing.assert_allclose(
        depth_from_image(image_from_array(millimetres, "16UC1", HEADER)), [[np.nan, 0.001, 65.535]], rtol=1e-6
    )
    metres = np.array([[0.5, 0.0, -1.0, np.inf, np.nan]], np.float32)
    depth = depth_from_image(image_from_array(metres, "32FC1", HEADER))
    np.testing.assert_array_equal(depth, [[0.5, np.nan, np.nan, np.nan, np.nan]])


@pytest.mark.parametrize(
    "change",
    [
        {"width": 6},
        {"height": 5},
        {"step": 14},
        {"step": 0},
        {"width": 0},
        {"encoding": "bayer_rggb8"},
        {"encoding": ""},
        {"encoding": "32FC1"},
    ],
    ids=str,
)
def test_an_image_with_inconsistent_fields_is_refused(change: dict[str, object]) -> None:
    message = image_from_array(pixels("rgb8", 4, 5), "rgb8", HEADER)
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(ImageError) as caught:
        image_to_array(message)
    assert caught.value.code == ErrorCode.IMAGE_INVALID


def test_an_empty_image_a_wrong_size_and_a_depth_as_colour_are_refused() -> None:
    with pytest.raises(ImageError):
        rgb_from_image(Image(encoding="rgb8"))
    message = image_from_array(pixels("rgb8", 4, 5), "rgb8", HEADER)
    with pytest.raises(ImageError, match="5 x 4"):
        rgb_from_image(message, width=720, height=480)
    with pytest.raises(ImageError, match="not a depth"):
        depth_from_image(message)
    with pytest.raises(ImageError, match="not a colour"):
        rgb_from_image(image_from_array(pixels("16UC1", 4, 5), "16UC1", HEADER))
    with pytest.raises(ImageError, match="uint16"):
        image_from_array(pixels("16UC1", 4, 5), "rgb8", HEADER)


def test_png_is_lossless_and_jpeg_is_close() -> None:
    u = np.linspace(0, 255, 64)
    ramp, flat = np.tile(u, (48, 1)), np.full((48, 64), 128.0)
    frames = np.stack([np.stack([ramp, ramp * s, flat], -1) for s in (0.3, 0.9)]).astype(np.uint8)
    np.testing.assert_array_equal(decode_rgb(encode_rgb(frames, "png", HEADER), width=64, height=48), frames)
    jpeg = decode_rgb(encode_rgb(frames, "jpeg", HEADER, quality=95), width=64, height=48)
    assert np.abs(jpeg.astype(int) - frames).mean() < 2.0


@pytest.mark.parametrize("format_", ["png", "jpeg"])
def test_damaged_or_unsupported_images_are_refused(format_: str) -> None:
    frames = np.full((1, 48, 64, 3), 90, np.uint8)
    [good] = encode_rgb(frames, format_, HEADER)  # type: ignore[arg-type]
    for width, height in ((64, 47), (6400, 4800)):
        with pytest.raises(ImageError):
            decode_rgb([good], width=width, height=height)
    good.data = good.data[: len(good.data) // 2]
    with pytest.raises(ImageError):
        decode_rgb([good], width=64, height=48)
    good.data = array("B", b"GIF89a" + bytes(50))
    with pytest.raises(ImageError, match="GIF8"):
        decode_rgb([good], width=64, height=48)


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
def test_cv_bridge_reads_the_same_pixels(encoding: str) -> None:
    bridge = pytest.importorskip("cv_bridge", reason="cv_bridge comes with a ROS distribution").CvBridge()
    message = image_from_array(pixels(encoding, 6, 7), encoding, HEADER)
    np.testing.assert_array_equal(bridge.imgmsg_to_cv2(message), image_to_array(message))
