from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, FileFormatError, RenderError
from kinema4d_ros.io.video import VideoWriter


def frames(count: int, width: int, height: int) -> list[Any]:
    """Return frames of a bright bar that moves over a coloured background."""
    out = []
    for i in range(count):
        image = np.empty((height, width, 3), np.uint8)
        image[:] = (180, 90, 30)
        image[:, 4 * i : 4 * i + 8] = (240, 240, 240)
        out.append(image)
    return out


def decode(path: Path) -> tuple[Any, list[Any]]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        facts = {
            "codec": stream.codec_context.name,
            "pixels": stream.pix_fmt,
            "size": (stream.width, stream.height),
            "rate": float(stream.average_rate or 0),
            "seconds": float(stream.duration * stream.time_base) if stream.duration and stream.time_base else 0.0,
        }
        return facts, [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]


@pytest.mark.parametrize("fps", [10, 24, 30000 / 1001, 12.5])
def test_frames_rate_and_colours_survive(tmp_path: Path, fps: float) -> None:
    source = frames(12, 96, 64)
    with VideoWriter(tmp_path / "a.mp4", fps, (96, 64)) as video:
        for image in source:
            video.write(image)
        assert video.frames == 12
    facts, shown = decode(tmp_path / "a.mp4")
    assert (facts["codec"], facts["pixels"], facts["size"]) == ("h264", "yuv420p", (96, 64))
    assert facts["rate"] == pytest.approx(fps, rel=1e-6)
    assert facts["seconds"] == pytest.approx(12 / fps, rel=1e-3)
    assert len(shown) == 12
    for image, seen in zip(source, shown, strict=True):
        assert np.abs(image.astype(int) - seen).mean() < 4


@pytest.mark.parametrize("size", [(97, 64), (96, 65), (33, 31)])
def test_odd_sizes_gain_one_repeated_line(tmp_path: Path, size: tuple[int, int]) -> None:
    with VideoWriter(tmp_path / "a.mp4", 10, size) as video:
        for image in frames(3, *size):
            video.write(image)
    facts, shown = decode(tmp_path / "a.mp4")
    assert facts["size"] == (size[0] + size[0] % 2, size[1] + size[1] % 2)
    assert np.abs(shown[0][-1, -1].astype(int) - shown[0][size[1] - 1, size[0] - 1]).max() < 12


def test_the_index_is_at_the_front(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mp4", 10, (64, 64)) as video:
        for image in frames(5, 64, 64):
            video.write(image)
    data = (tmp_path / "a.mp4").read_bytes()
    assert 0 < data.find(b"moov") < data.find(b"mdat")


def test_an_error_leaves_no_file(tmp_path: Path) -> None:
    def fail(error: Exception) -> None:
        with VideoWriter(tmp_path / "a.mp4", 10, (64, 64)) as video:
            video.write(frames(1, 64, 64)[0])
            raise error

    for error in (KeyError("stop"), FileNotFoundError(2, "No such file", "input.bin"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            fail(error)  # type: ignore[arg-type]
        assert caught.value is error
        assert list(tmp_path.iterdir()) == []


def test_an_error_keeps_an_older_video(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"older")
    with pytest.raises(RenderError, match="without frames"), VideoWriter(tmp_path / "a.mp4", 10, (64, 64)):
        pass
    assert (tmp_path / "a.mp4").read_bytes() == b"older"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "image", [np.zeros((64, 63, 3), np.uint8), np.zeros((64, 64), np.uint8), np.zeros((64, 64, 3), np.float32)]
)
def test_frames_that_do_not_fit_are_refused(tmp_path: Path, image: Any) -> None:
    with pytest.raises(RenderError, match="video frame 0"), VideoWriter(tmp_path / "a.mp4", 10, (64, 64)) as video:
        video.write(image)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [(0, (64, 64)), (float("nan"), (64, 64)), (-1, (64, 64)), (10, (1, 64)), (10, (0, 0))]
)
def test_invalid_videos_are_refused(tmp_path: Path, arguments: Any) -> None:
    with pytest.raises(RenderError):
        VideoWriter(tmp_path / "a.mp4", *arguments)


def test_writing_outside_the_block_is_refused(tmp_path: Path) -> None:
    video = VideoWriter(tmp_path / "a.mp4", 10, (64, 64))
    with pytest.raises(RenderError, match="not open"):
        video.write(frames(1, 64, 64)[0])
    with video:
        video.write(frames(1, 64, 64)[0])
    with pytest.raises(RenderError, match="not open"):
        video.write(frames(1, 64, 64)[0])


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileFormatError) as caught, VideoWriter(tmp_path / "file" / "a.mp4", 10, (64, 64)):
        pass
    assert caught.value.code == ErrorCode.FILE_NOT_WRITABLE
