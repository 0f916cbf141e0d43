"""PSNR and SSIM against scikit-image and torchmetrics, with masks; refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from kinema4d_ros.core.errors import ErrorCode
from kinema4d_ros.evaluation import EvaluationError, dynamic_region, psnr, psnr_overall, ssim

WANG = {"channel_axis": -1, "gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 255}


def videos(seed: int = 0, shape: tuple[int, int, int] = (3, 41, 57), noise: float = 20.0):
    """Images with edges, gradients and a saturated patch, and noisy copies."""
    rng = np.random.default_rng(seed)
    t, h, w = shape
    rows, columns = np.mgrid[0:h, 0:w]
    truth = np.empty((t, h, w, 3))
    for i in range(t):
        for c in range(3):
            truth[i, ..., c] = 90 + 60 * np.sin(columns / (4 + c) + i) + 40 * (rows > h // 2)
        truth[i, 5 : h // 3, 8 : w // 3] = 255
    predicted = truth + rng.normal(0, noise, truth.shape)
    return np.clip(predicted, 0, 255).astype(np.uint8), np.clip(truth, 0, 255).astype(np.uint8)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), h=st.integers(11, 40), w=st.integers(11, 40), noise=st.sampled_from([0.7, 8.0, 90.0]))
def test_agrees_with_scikit_image(seed: int, h: int, w: int, noise: float) -> None:
    predicted, truth = videos(seed, (2, h, w), noise)
    for t in range(2):
        assert ssim(predicted, truth)[t] == pytest.approx(
            structural_similarity(predicted[t], truth[t], **WANG), abs=1e-9
        )
        assert psnr(predicted, truth)[t] == pytest.approx(peak_signal_noise_ratio(truth[t], predicted[t]), abs=1e-9)
    assert psnr_overall(predicted, truth) == pytest.approx(peak_signal_noise_ratio(truth, predicted), abs=1e-9)


def test_agrees_with_torchmetrics() -> None:
    torch = pytest.importorskip("torch")
    from torchmetrics.functional.image import peak_signal_noise_ratio as tm_psnr
    from torchmetrics.functional.image import structural_similarity_index_measure as tm_ssim

    predicted, truth = videos(3)
    a, b = (torch.from_numpy(v).movedim(-1, 1).double() for v in (predicted, truth))
    assert psnr_overall(predicted, truth) == pytest.approx(float(tm_psnr(a, b, data_range=255.0)), abs=1e-5)
    # torchmetrics also counts the border, padded by reflection: compared without it.
    _, full = tm_ssim(a, b, data_range=255.0, sigma=1.5, reduction="none", return_full_image=True)
    np.testing.assert_allclose(ssim(predicted, truth), full[..., 5:-5, 5:-5].mean(dim=(1, 2, 3)).numpy(), atol=1e-5)


def test_only_masked_pixels_count() -> None:
    predicted, truth = videos(1)
    mask = np.zeros(truth.shape[:3], bool)
    mask[0, 10:20, 12:33] = mask[1, 6:35, 6:50] = True
    mask[0, 0, 0] = True
    for t in range(2):
        error = (predicted[t].astype(float) - truth[t])[mask[t]]
        assert psnr(predicted, truth, mask)[t] == pytest.approx(10 * np.log10(255**2 / (error**2).mean()), abs=1e-9)
        _, full = structural_similarity(predicted[t], truth[t], full=True, **WANG)
        inner = mask[t].copy()
        inner[:5], inner[-5:], inner[:, :5], inner[:, -5:] = False, False, False, False
        assert ssim(predicted, truth, mask)[t] == pytest.approx(full[inner].mean(), abs=1e-9)
    assert np.isnan(psnr(predicted, truth, mask)[2])
    assert np.isnan(ssim(predicted, truth, mask)[2])
    everywhere = np.ones(truth.shape[1:3], bool)
    np.testing.assert_allclose(ssim(predicted, truth, everywhere), ssim(predicted, truth), atol=1e-12)


def test_equal_images() -> None:
    predicted, truth = videos()
    predicted[1] = truth[1]
    assert psnr(predicted, truth)[1] == np.inf
    assert np.isfinite(psnr_overall(predicted, truth)), "one exact frame must not hide the others"
    assert ssim(predicted, truth)[1] == pytest.approx(1.0)


def test_dynamic_region_covers_robot_and_moving_objects() -> None:
    robot = np.zeros((2, 30, 40), bool)
    robot[1, 10, 10] = True
    ids = np.zeros(robot.shape, np.uint8)
    ids[0, 20, 30] = ids[1, 20, 20] = 7
    ids[:, 3, 3] = 8
    region = dynamic_region(robot, ids, [7], reach_px=2)
    expected = np.zeros_like(robot)
    expected[0, 18:23, 28:33] = True
    expected[1, 8:13, 8:13] = expected[1, 18:23, 18:23] = expected[1, 18:23, 28:33] = True
    np.testing.assert_array_equal(region, expected)
    without = dynamic_region(robot, ids, 7, reach_px=2, with_start=False)
    assert not without[1, 18:23, 28:33].any()
    np.testing.assert_array_equal(dynamic_region(robot, reach_px=0), robot)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda a, b: (a[:2], b), "2 frames, the truth 3"),
        (lambda a, b: (a[:, :20], b), "57 x 20"),
        (lambda a, b: (a.astype(float), b), "float64"),
        (lambda a, b: (a[0], b), "shape"),
        (lambda a, b: (a[:0], b[:0]), "(0,"),
    ],
)
def test_bad_images_are_refused(change, says: str) -> None:
    predicted, truth = change(*videos())
    for metric in (psnr, ssim, psnr_overall):
        with pytest.raises(EvaluationError) as caught:
            metric(predicted, truth)
        assert says in str(caught.value)
        assert caught.value.code == ErrorCode.ROLLOUT_INVALID


def test_bad_masks_sizes_and_ids_are_refused() -> None:
    predicted, truth = videos()
    with pytest.raises(EvaluationError, match="mask is uint8"):
        psnr(predicted, truth, np.ones(truth.shape[:3], np.uint8))
    with pytest.raises(EvaluationError, match="mask is bool of shape"):
        ssim(predicted, truth, np.ones((2, 41, 57), bool))
    with pytest.raises(EvaluationError, match="more than 10 pixels"):
        ssim(predicted[:, :10], truth[:, :10])
    with pytest.raises(EvaluationError, match="ids have shape"):
        dynamic_region(np.zeros((2, 5, 5), bool), np.zeros((2, 5, 4), np.uint8), [1])
    with pytest.raises(EvaluationError, match="ids have shape"):
        dynamic_region(np.zeros((2, 5, 5), bool), None, [1])
    with pytest.raises(EvaluationError, match="reach_px is -1"):
        dynamic_region(np.zeros((2, 5, 5), bool), reach_px=-1)
