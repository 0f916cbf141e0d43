"""Frame selection: blur in pixels, spread of views, and errors."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from kinema4d_ros.acquisition.frames import (
    FrameSource,
    Measured,
    blur_px,
    choose_frames,
    looked_at,
    measure_frames,
    require_around,
    view_directions,
)
from kinema4d_ros.acquisition.synthetic import orbit_cameras
from kinema4d_ros.core.errors import AssetError, ErrorCode, FileFormatError
from kinema4d_ros.io.images import write_image
from kinema4d_ros.io.video import VideoWriter


def scene(seed: int = 0, size: int = 256) -> np.ndarray:
    """Draw bright and dark polygons with edges in all directions, at four times the size."""
    rng = np.random.default_rng(seed)
    big = np.full((4 * size, 4 * size), 120, np.uint8)
    for _ in range(40):
        corners = (rng.uniform(0, 4 * size, 2) + rng.uniform(-300, 300, (3, 2))).astype(np.int32)
        cv2.fillPoly(big, [corners], int(rng.integers(0, 256)))
    return np.asarray(cv2.resize(big, (size, size), interpolation=cv2.INTER_AREA))


def spoiled(image: np.ndarray, sigma: float, noise: float = 2.0) -> np.ndarray:
    soft = cv2.GaussianBlur(image.astype(np.float32), (0, 0), sigma) if sigma > 0 else image.astype(np.float32)
    grain = np.random.default_rng(1).normal(0, noise, image.shape)
    return np.asarray(np.clip(soft + grain, 0, 255), np.uint8)


@pytest.mark.parametrize("sigma", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_blur_is_measured_in_pixels(sigma: float, seed: int) -> None:
    # The drawing itself has the blur of its pixels: about 0.4.
    assert blur_px(spoiled(scene(seed), sigma)) == pytest.approx(np.hypot(sigma, 0.4), rel=0.25)


def test_motion_blur_in_one_direction_is_measured() -> None:
    kernel = np.zeros((15, 15), np.float32)
    kernel[7] = 1 / 15
    smeared = spoiled(np.asarray(cv2.filter2D(scene(), -1, kernel)), 0.5)
    assert blur_px(spoiled(scene(), 0.5)) < 1.5
    assert blur_px(smeared) > 2.5
    assert blur_px(spoiled(scene(), 6.0)) > 3.0


def test_images_without_edges() -> None:
    assert blur_px(np.full((64, 64), 90, np.uint8)) == float("inf")
    with pytest.raises(AssetError, match="float64"):
        blur_px(np.zeros((64, 64)))


def measured(count: int, blurred: set[int] = frozenset(), known: bool = True) -> Measured:  # type: ignore[assignment]
    poses = np.stack([c.base_T_camera for c in orbit_cameras(count, distortion=())])
    blur = np.where([i in blurred for i in range(count)], 6.0, 1.0 + 0.001 * np.arange(count))
    return Measured(
        np.arange(count), blur, np.linspace(0, 3, count), poses if known else np.full((count, 4, 4), np.nan)
    )


@pytest.mark.parametrize("known", [True, False])
def test_chosen_frames_are_sharp_and_spread(known: bool) -> None:
    blurred = {i for i in range(80) if i % 4 == 1}
    data = measured(80, blurred, known)
    chosen = choose_frames(data, 20)
    assert 18 <= len(chosen) <= 20
    assert len(set(chosen.tolist())) == len(chosen)
    assert not blurred & set(chosen.tolist())
    poses = np.stack([c.base_T_camera for c in orbit_cameras(80, distortion=())])
    ways = view_directions(poses)
    angle = np.degrees(np.arccos(np.clip(ways @ ways[chosen].T, -1, 1)))
    # Every camera pose has a chosen view nearby.
    assert angle.min(axis=1).max() < 26.0
    between = angle[chosen] + 1e3 * np.eye(len(chosen))
    assert between.min() > (9.0 if known else 3.0)


def test_all_frames_are_used_if_there_are_too_few() -> None:
    assert choose_frames(measured(9), 20).tolist() == list(range(9))


def test_blurred_videos_are_refused() -> None:
    with pytest.raises(AssetError, match="12% of the frames are sharp") as caught:
        choose_frames(measured(80, set(range(70))), 20)
    assert caught.value.code == ErrorCode.IMAGE_INVALID
    with pytest.raises(AssetError, match=r"\(5 of 8\)"):
        choose_frames(measured(8, {0, 1, 2}), 20)
    with pytest.raises(AssetError, match="views is 3"):
        choose_frames(measured(30), 3)


def test_views_from_one_side_and_too_few_are_refused() -> None:
    poses = measured(30).world_T_camera
    names = [str(i) for i in range(30)]
    assert require_around(poses, names) > 100
    with pytest.raises(AssetError, match="all 6 views are from one side"):
        require_around(poses[[0, 1, 2, 3, 0, 1]], names[:6])
    with pytest.raises(AssetError, match="4 views have a pose"):
        require_around(poses[::8], names[::8])


def test_the_point_that_cameras_look_at() -> None:
    poses = np.stack([c.base_T_camera for c in orbit_cameras(30, distortion=())])
    np.testing.assert_allclose(looked_at(poses), [0.18, 0.0, 0.20], atol=0.01)


def test_videos_and_folders_give_the_same_frames(tmp_path: Path) -> None:
    images = [np.repeat(np.roll(scene(), 5 * i, axis=1)[..., None], 3, axis=2) for i in range(12)]
    with VideoWriter(tmp_path / "v.mp4", 10, (256, 256), crf=4) as video:
        for i, image in enumerate(images):
            video.write(image)
            write_image(tmp_path / "folder" / f"f{i:02d}.png", image)
    film, folder = FrameSource(tmp_path / "v.mp4"), FrameSource(tmp_path / "folder")
    assert len(film) == len(folder) == 12
    assert film.names[3] == "000003"
    assert folder.names[3] == "f03"
    for (i, a), (j, b) in zip(film.read([2, 7]), folder.read([2, 7]), strict=True):
        assert i == j
        assert np.abs(a.astype(int) - b).mean() < 2.0
    found = measure_frames(folder, lambda name, image: None)
    # Each frame moved by 5 of 256 pixels.
    np.testing.assert_allclose(np.diff(found.path), 5 / 256, rtol=0.15)


def test_broken_files(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="does not exist"):
        FrameSource(tmp_path / "none.mp4")
    (tmp_path / "noise.mp4").write_bytes(b"no video" * 100)
    with pytest.raises(FileFormatError, match="cannot be decoded"):
        FrameSource(tmp_path / "noise.mp4")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileFormatError, match="no image"):
        FrameSource(tmp_path / "empty")
