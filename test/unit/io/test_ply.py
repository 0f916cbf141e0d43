from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trimesh

from kinema4d_ros.core.errors import ErrorCode, PointmapError
from kinema4d_ros.core.pointmap import PointmapSequence
from kinema4d_ros.io.ply import write_ply


def test_another_program_reads_points_and_colours(
    tmp_path: Path, make_sequence: Callable[..., PointmapSequence]
) -> None:
    sequence = make_sequence()
    assert sequence.rgb is not None
    count = write_ply(tmp_path / "a.ply", sequence.xyz[1], sequence.rgb[1], comment="camera_optical_frame, metres")
    cloud: Any = trimesh.load(tmp_path / "a.ply")
    assert count == int(sequence.mask[1].sum()) == len(cloud.vertices)
    np.testing.assert_array_equal(np.asarray(cloud.vertices, np.float32), sequence.xyz[1][sequence.mask[1]])
    np.testing.assert_array_equal(np.asarray(cloud.colors)[:, :3], sequence.rgb[1][sequence.mask[1]])


def test_points_alone(tmp_path: Path) -> None:
    points = np.array([[0.0, 1.0, 2.0], [3.0, np.inf, 5.0], [6.0, 7.0, 8.0]])
    assert write_ply(tmp_path / "a.ply", points) == 2
    data = (tmp_path / "a.ply").read_bytes()
    header, body = data.split(b"end_header\n", 1)
    assert header.startswith(b"ply\nformat binary_little_endian 1.0\nelement vertex 2\n")
    assert b"uchar" not in header
    np.testing.assert_array_equal(np.frombuffer(body, "<f4").reshape(-1, 3), points[[0, 2]])


@pytest.mark.parametrize(
    ("xyz", "rgb", "comment", "code"),
    [
        (np.full((4, 3), np.nan), None, "", ErrorCode.POINTMAP_EMPTY),
        (np.zeros((0, 3)), None, "", ErrorCode.POINTMAP_EMPTY),
        (np.zeros((4, 2)), None, "", ErrorCode.POINTMAP_BAD_INPUT),
        (np.zeros(3), None, "", ErrorCode.POINTMAP_BAD_INPUT),
        (np.zeros((4, 3)), np.zeros((3, 3), np.uint8), "", ErrorCode.POINTMAP_BAD_INPUT),
        (np.zeros((4, 3)), np.zeros((4, 3)), "", ErrorCode.POINTMAP_BAD_INPUT),
        (np.zeros((4, 3)), None, "two\nelement vertex 9", ErrorCode.POINTMAP_BAD_INPUT),
    ],
)
def test_clouds_that_cannot_be_written_are_refused(
    tmp_path: Path, xyz: Any, rgb: Any, comment: str, code: ErrorCode
) -> None:
    with pytest.raises(PointmapError) as caught:
        write_ply(tmp_path / "a.ply", xyz, rgb, comment=comment)
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []
