"""Pairwise comparison of calibration results for one camera."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinema4d_ros.calibration import Extrinsics, write_extrinsics
from kinema4d_ros.calibration.pose_estimate import changed, compare
from kinema4d_ros.cli import main
from kinema4d_ros.core.errors import CalibrationError, ErrorCode
from kinema4d_ros.core.transforms import from_rpy

POSE = from_rpy([0.1, 0.2, 0.3], [0.5, 0.4, 0.3])
SURE = np.diag([1e-6] * 3 + [1e-8] * 3)


def result(shift_mm: float, covariance: np.ndarray | None = SURE, frame: str = "base_link") -> Extrinsics:
    pose = changed(POSE, [1e-3 * shift_mm, 0, 0, 0, 0, 0])
    return Extrinsics(frame, "eye", pose, covariance=covariance)


def test_agreement_depends_on_distance() -> None:
    found = compare({"a": result(0), "b": result(2)})
    assert found.verdict == "agree"
    assert found.pairs[0][2].shift_mm == pytest.approx(2.0)
    assert compare({"a": result(0), "b": result(9)}).verdict == "disagree"


def test_few_degrees_of_freedom_widen_the_limit() -> None:
    far = replace(result(7), degrees_of_freedom=8.0)
    assert compare({"a": result(0), "b": far}).verdict == "agree"
    assert compare({"a": result(0), "b": result(7)}).verdict == "disagree"


def test_outlier_of_three_results_is_reported() -> None:
    found = compare({"a": result(0), "b": result(40), "c": result(1)})
    assert found.verdict == "disagree"
    assert found.odd_one == "b"
    assert "b differs" in found.lines()[-1]
    # Three results that all disagree have no odd one, and neither have two.
    assert compare({"a": result(0), "b": result(40), "c": result(80)}).odd_one == ""
    assert compare({"a": result(0), "b": result(40)}).odd_one == ""


def test_verdict_is_unknown_without_uncertainty() -> None:
    assert compare({"a": result(0, None), "b": result(1, None)}).verdict == "unknown"
    assert compare({"a": result(0, None), "b": result(1)}).verdict == "agree"
    assert compare({"a": result(0, None), "b": result(50)}).verdict == "disagree"
    assert "neither" in compare({"a": result(0, None), "b": result(1, None)}).lines()[0]


def test_exact_results_that_are_equal_agree() -> None:
    none = np.zeros((6, 6))
    assert compare({"a": result(0, none), "b": result(0, none)}).verdict == "agree"
    assert compare({"a": result(0, none), "b": result(1, none)}).verdict == "disagree"


def test_other_frames_and_single_files_are_refused() -> None:
    with pytest.raises(CalibrationError, match="base_link, table") as caught:
        compare({"a": result(0), "b": result(0, frame="table")})
    assert caught.value.code == ErrorCode.CALIBRATION_FRAME_MISMATCH
    with pytest.raises(CalibrationError, match="1 result"):
        compare({"a": result(0)})


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, pose in {"a": result(0), "b": result(1), "c": result(60), "old": result(0, None)}.items():
        files.append(str(tmp_path / f"{name}.yaml"))
        write_extrinsics(files[-1], pose)
    a, b, c, old = files
    assert main(["calibrate", "compare", a, b]) == 0
    assert "1.00 mm" in capsys.readouterr().out
    assert main(["calibrate", "compare", a, b, c, "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "disagree"
    assert found["odd_one"] == c
    assert [pair["agrees"] for pair in found["pairs"]] == [True, False, False]
    write_extrinsics(a, result(3, None))
    assert main(["calibrate", "compare", a, old, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["pairs"][0]["distance"] is None
    assert main(["calibrate", "compare", a, a]) == 2
    assert "twice" in capsys.readouterr().err
