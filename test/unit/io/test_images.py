from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, RenderError
from kinema4d_ros.io.images import colour_depth, overlay, read_image, strip, write_image

RNG = np.random.default_rng(0)
BACKGROUND = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)
ROBOT = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)
MASK = RNG.random((20, 30)) < 0.5


@given(st.floats(0, 1))
def test_overlay_mixes_under_the_mask_only(alpha: float) -> None:
    out = overlay(BACKGROUND, ROBOT, MASK, alpha)
    np.testing.assert_array_equal(out[~MASK], BACKGROUND[~MASK])
    expected = alpha * ROBOT[MASK].astype(float) + (1 - alpha) * BACKGROUND[MASK]
    assert np.abs(out[MASK] - expected).max() <= 0.5 + 1e-3


def test_overlay_ends() -> None:
    np.testing.assert_array_equal(overlay(BACKGROUND, ROBOT, MASK, 0.0), BACKGROUND)
    np.testing.assert_array_equal(overlay(BACKGROUND, ROBOT, MASK, 1.0)[MASK], ROBOT[MASK])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((BACKGROUND[:10], ROBOT, MASK), ErrorCode.CAMERA_BAD_SIZE),
        ((BACKGROUND, ROBOT, MASK[:10]), ErrorCode.RENDER_BAD_INPUT),
        ((BACKGROUND, ROBOT, MASK.astype(float)), ErrorCode.RENDER_BAD_INPUT),
        ((BACKGROUND.astype(float), ROBOT, MASK), ErrorCode.RENDER_BAD_INPUT),
        ((BACKGROUND[..., 0], ROBOT, MASK), ErrorCode.RENDER_BAD_INPUT),
        ((BACKGROUND, ROBOT, MASK, 1.5), ErrorCode.RENDER_BAD_INPUT),
        ((BACKGROUND, ROBOT, MASK, float("nan")), ErrorCode.RENDER_BAD_INPUT),
    ],
)
def test_overlay_refuses_what_does_not_fit(arguments: Any, code: ErrorCode) -> None:
    with pytest.raises(RenderError) as caught:
        overlay(*arguments)
    assert caught.value.code == code


def test_depth_is_red_near_blue_far_and_black_without_depth() -> None:
    depth = np.array([[0.5, 1.0, 1.5, np.nan]])
    near, middle, far, nothing = colour_depth(depth)[0].astype(int)
    assert near[0] > 150
    assert near[2] < 80
    assert far[2] > 100
    assert far[0] < 80
    assert middle[1] > 200
    assert nothing.tolist() == [0, 0, 0]


def test_depth_limits_keep_colours_steady() -> None:
    alone = colour_depth(np.array([[1.0]]), 0.5, 1.5)
    among = colour_depth(np.array([[0.5, 1.0, 1.5]]), 0.5, 1.5)
    np.testing.assert_array_equal(alone[0, 0], among[0, 1])
    beyond = colour_depth(np.array([[0.1, 0.5, 1.5, 9.0]]), 0.5, 1.5)
    np.testing.assert_array_equal(beyond[0, 0], beyond[0, 1])
    np.testing.assert_array_equal(beyond[0, 2], beyond[0, 3])


def test_depth_of_an_empty_image_and_of_one_plane() -> None:
    assert not colour_depth(np.full((3, 4), np.nan)).any()
    plane = colour_depth(np.full((3, 4), 0.7))
    assert len(np.unique(plane.reshape(-1, 3), axis=0)) == 1
    assert plane.any()


def test_a_strip_places_frames_row_by_row() -> None:
    frames = [np.full((4, 6, 3), i, np.uint8) for i in range(5)]
    out = strip(frames, 3)
    assert out.shape == (2 * 4 + 2, 3 * 6 + 2 * 2, 3)
    for i in range(5):
        top, left = (i // 3) * 6, (i % 3) * 8
        assert np.all(out[top : top + 4, left : left + 6] == i)
    assert np.all(out[6:, 16:] == 255)
    assert np.all(out[4:6] == 255)
    assert strip(frames[:2], 10).shape == (4, 14, 3)


def test_labels_are_written_and_frames_are_kept() -> None:
    frames = [np.full((60, 90, 3), 90, np.uint8) for _ in range(2)]
    out = strip(frames, 2, ["t = 0", ""])
    assert (out[:, :90] == 255).any()
    assert np.all(out[:, 92:] == 90)
    assert np.all(frames[0] == 90)


def test_invalid_strips_are_refused() -> None:
    frame = np.zeros((4, 6, 3), np.uint8)
    for arguments in (([], 3), ([frame], 0), ([frame], 1, ["a", "b"]), ([frame, frame[:2]], 2), ([frame[..., 0]], 1)):
        with pytest.raises(RenderError):
            strip(*arguments)  # type: ignore[arg-type]


def test_png_files_round_trip_in_other_libraries(tmp_path: Path) -> None:
    write_image(tmp_path / "sub" / "a.png", BACKGROUND)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "sub" / "a.png")), BACKGROUND)
    np.testing.assert_array_equal(read_image(tmp_path / "sub" / "a.png"), BACKGROUND)


def test_jpeg_files_are_close(tmp_path: Path) -> None:
    smooth = np.broadcast_to(np.linspace(0, 255, 64, dtype=np.uint8)[:, None, None], (64, 64, 3)).copy()
    write_image(tmp_path / "a.jpg", smooth)
    assert np.abs(read_image(tmp_path / "a.jpg").astype(int) - smooth).max() < 8


def test_grey_and_16_bit_images_become_rgb(tmp_path: Path) -> None:
    Image.fromarray(np.full((3, 4), 7, np.uint8)).save(tmp_path / "grey.png")
    assert read_image(tmp_path / "grey.png").tolist() == np.full((3, 4, 3), 7).tolist()
    Image.fromarray(np.full((3, 4), 0x0700, np.uint16)).save(tmp_path / "deep.png")
    assert read_image(tmp_path / "deep.png").tolist() == np.full((3, 4, 3), 7).tolist()


def test_other_formats_and_broken_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError) as caught:
        write_image(tmp_path / "a.gif", BACKGROUND)
    assert caught.value.code == ErrorCode.FILE_UNSUPPORTED
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_bytes(b"hello")
    for name in ("empty.png", "text.png"):
        with pytest.raises(FileFormatError, match="is not an image") as caught:
            read_image(tmp_path / name)
        assert caught.value.code == ErrorCode.FILE_MALFORMED
    with pytest.raises(FileFormatError) as caught:
        read_image(tmp_path / "none.png")
    assert caught.value.code == ErrorCode.FILE_MISSING
