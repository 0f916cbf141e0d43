from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinema4d_ros.calibration import Extrinsics, Residuals
from kinema4d_ros.calibration.quality import rate_calibration
from kinema4d_ros.core.errors import CalibrationError, ErrorCode


def extrinsics(**residuals: float) -> Extrinsics:
    return Extrinsics("base_link", "camera", np.eye(4), method="hand-eye", residuals=Residuals(**residuals))


def test_a_small_residual_is_good_and_shown() -> None:
    trust = rate_calibration(extrinsics(px=0.42, mm=0.553, mask_iou=0.981, poses=8), warn_px=2.0, refuse_px=0.0)
    assert (trust.level, trust.refused, trust.warning) == ("good", False, "")
    assert trust.figures == "0.42 px, 0.55 mm, IoU 0.981, 8 poses"
    assert trust.values()["calibration residual"] == trust.figures
    assert trust.values()["calibration method"] == "hand-eye"
    trust.require()


def test_large_residual_is_poor_and_refused_above_the_limit() -> None:
    poor = rate_calibration(extrinsics(px=3.0), warn_px=2.0, refuse_px=0.0)
    assert poor.level == "poor"
    assert "3.00 px" in poor.warning
    assert "above 2 px" in poor.warning
    poor.require()
    refused = rate_calibration(extrinsics(px=3.0), warn_px=2.0, refuse_px=2.5)
    with pytest.raises(CalibrationError, match=r"above the limit of 2\.5 px") as caught:
        refused.require()
    assert caught.value.code == ErrorCode.CALIBRATION_POOR


@pytest.mark.parametrize("residuals", [{}, {"mm": 0.1, "poses": 12}])
def test_without_a_residual_it_is_unknown_and_not_good(residuals: dict[str, float]) -> None:
    trust = rate_calibration(extrinsics(**residuals), warn_px=2.0, refuse_px=0.0)
    assert trust.level == "unknown"
    assert "unknown" in trust.warning
    trust.require()
    with pytest.raises(CalibrationError, match="unknown"):
        rate_calibration(extrinsics(**residuals), warn_px=2.0, refuse_px=5.0).require()


@given(px=st.floats(0, 50), warn=st.floats(0, 50), refuse=st.floats(0, 50))
def test_refused_only_above_the_limit(px: float, warn: float, refuse: float) -> None:
    trust = rate_calibration(extrinsics(px=px), warn_px=warn, refuse_px=refuse)
    assert trust.refused == (0 < refuse < px)
    assert (trust.level == "good") == (not trust.refused and not 0 < warn < px)
    assert bool(trust.warning) == (trust.level != "good")
