"""Learned metrics with random weights against torchmetrics and SciPy, and refusals.

The released weights cannot be downloaded where these tests must run; the networks are checked by their names, shapes
and published parameter counts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import sqrtm

pytest.importorskip("torch", reason="needs torch")

import torch
from safetensors.torch import save_file

from kinema4d_model.metrics import EXPECTED, fid, fvd, latent_l2, learned_metrics, load_network, lpips
from kinema4d_model.metrics.networks import AlexNetLpips, I3dFeatures, InceptionFeatures
from kinema4d_ros.cli import main
from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.evaluation import EvaluationError


def videos(frames: int = 4, h: int = 40, w: int = 48) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 256, (frames, h, w, 3), dtype=np.uint8)
    return np.clip(truth + rng.normal(0, 30, truth.shape), 0, 255).astype(np.uint8), truth


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with random networks under the expected names: AlexNet as torchvision saves it."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    alexnet = {k: v for k, v in AlexNetLpips().state_dict().items() if k.startswith("features.")}
    torch.save({**alexnet, "classifier.1.weight": torch.zeros(2, 2)}, folder / EXPECTED["lpips"].files[1])
    inception = InceptionFeatures().state_dict()
    save_file({**inception, "fc.weight": torch.zeros(1008, 8)}, folder / EXPECTED["fid"].files[0])
    torch.save(I3dFeatures().state_dict(), folder / EXPECTED["fvd"].files[1])
    return folder


def test_lpips_is_torchmetrics_with_the_same_weights(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchmetrics.functional.image import lpips as theirs

    ours = load_network("lpips", weights)
    # torchmetrics would download the backbone through torchvision: it gets ours instead.
    monkeypatch.setattr(theirs, "_get_tv_model_features", lambda net, pretrained=False: ours.features)
    reference = theirs._LPIPS(net="alex", pretrained=True, pnet_rand=True)
    predicted, truth = videos(5)
    a, b = (torch.from_numpy(v).movedim(-1, 1).float() / 127.5 - 1 for v in (predicted, truth))
    expected = reference(a, b).flatten().numpy()
    assert expected.min() > 1e-4
    np.testing.assert_allclose(lpips(ours, predicted, truth), expected, rtol=1e-5)
    np.testing.assert_array_equal(lpips(ours, truth, truth), 0)


def test_networks_have_their_published_sizes() -> None:
    count = {net: sum(p.numel() for p in net().parameters()) for net in (InceptionFeatures, I3dFeatures, AlexNetLpips)}
    assert count[InceptionFeatures] == 21_785_568
    assert 12.2e6 < count[I3dFeatures] < 12.8e6
    assert count[AlexNetLpips] == 2_469_696 + 64 + 192 + 384 + 256 + 256
    names = InceptionFeatures().state_dict().keys()
    for name in (
        "Conv2d_1a_3x3.conv.weight",
        "Mixed_6c.branch7x7dbl_4.bn.running_var",
        "Mixed_7c.branch_pool.conv.weight",
    ):
        assert name in names
    for name in ("Conv3d_1a_7x7.conv3d.weight", "Mixed_4e.b2b.bn.running_mean", "logits.conv3d.bias"):
        assert name in I3dFeatures().state_dict()


def test_fid_is_the_frechet_distance_of_the_features() -> None:
    class Means(torch.nn.Module):
        """Network with three outputs per image, small enough for an exact result."""

        num_features = 3

        def forward(self, x):
            return x.float().mean(dim=(2, 3))

    predicted, truth = videos(30)
    a, b = (v.astype(np.float64).mean(axis=(1, 2)) for v in (predicted, truth))
    ca, cb = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    expected = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(ca + cb - 2 * np.real(sqrtm(ca @ cb)))
    assert fid(Means(), [predicted[:10], predicted[10:]], [truth]) == pytest.approx(expected, rel=1e-5)


def test_fvd_compares_clips_of_16_frames_every_8() -> None:
    seen = []

    class Means(torch.nn.Module):
        num_features = 3

        def forward(self, x):
            seen.append(tuple(x.shape))
            return x.float().mean(dim=(2, 3, 4))

    predicted, truth = videos(32, 12, 14)
    a, b = (
        np.stack([v[i : i + 16].astype(np.float64).mean(axis=(0, 1, 2)) for i in (0, 8, 16)])
        for v in (predicted, truth)
    )
    ca, cb = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    expected = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(ca + cb - 2 * np.real(sqrtm(ca @ cb)))
    assert fvd(Means(), [predicted], [truth]) == pytest.approx(expected, rel=1e-5)
    assert seen == [(1, 3, 16, 12, 14)] * 6


def test_networks_are_read_from_the_folder_as_they_are(weights: Path) -> None:
    torch.manual_seed(0)
    for name, network in (("lpips", AlexNetLpips()), ("fid", InceptionFeatures()), ("fvd", I3dFeatures())):
        found = load_network(name, weights)
        assert not found.training
        for key, tensor in network.state_dict().items():
            if name != "lpips" or key.startswith("features."):
                torch.testing.assert_close(found.state_dict()[key], tensor, rtol=0, atol=0)
    with torch.inference_mode():
        assert load_network("fid", weights)(torch.zeros(1, 3, 40, 48, dtype=torch.uint8)).shape == (1, 2048)


def test_i3d_gives_one_row_of_logits_a_clip() -> None:
    with torch.inference_mode():
        rows = I3dFeatures().eval()(torch.zeros(1, 3, 16, 24, 32, dtype=torch.uint8))
    assert rows.shape == (1, 400)


def test_latent_l2_is_the_codec_s_mean_squared_difference() -> None:
    from kinema4d_model.checkpoints.bundle import ModelBundle

    codec = ModelBundle.from_preset("tiny", seed=0).codec
    predicted, truth = videos(5, 32, 48)
    with torch.inference_mode():
        x, y = (codec.encode(torch.from_numpy(v).permute(3, 0, 1, 2)[None] / 127.5 - 1) for v in (predicted, truth))
    assert latent_l2(codec, predicted, truth) == pytest.approx(float(((x - y) ** 2).mean()), rel=1e-5)
    assert latent_l2(codec, truth, truth) == 0
    with pytest.raises(EvaluationError, match="4 frames"):
        latent_l2(codec, predicted[:4], truth[:4])


def test_latent_l2_takes_the_codec_of_a_model_folder(tmp_path: Path) -> None:
    from kinema4d_model.checkpoints.bundle import ModelBundle

    bundle = ModelBundle.from_preset("tiny", seed=3)
    bundle.save_pretrained(tmp_path / "model")
    predicted, truth = videos(5, 32, 48)
    found = learned_metrics(["latent_l2"], predicted, truth, None, tmp_path / "model")
    assert found["latent_l2"] == pytest.approx(latent_l2(bundle.codec, predicted, truth), rel=1e-6)
    with pytest.raises(FileFormatError, match="has no preset"):
        learned_metrics(["latent_l2"], predicted, truth, None, tmp_path)


@pytest.mark.parametrize("name", ["lpips", "fid", "fvd"])
def test_missing_weights_name_the_file_and_the_folder(name: str, tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(FileFormatError) as caught:
            learned_metrics([name], *videos(), folder)
        assert caught.value.code == ErrorCode.FILE_MISSING
        for file in EXPECTED[name].files:
            assert file in str(caught.value)


def test_wrong_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / EXPECTED["lpips"].files[0]
    good = {k: v for k, v in AlexNetLpips().state_dict().items() if k.startswith("features.")}
    for bad, says in (
        ({k: v for k, v in good.items() if k != "features.3.bias"}, "lacks features.3.bias"),
        ({**good, "features.99.bias": torch.zeros(1)}, "has features.99.bias"),
        ({**good, "features.3.bias": torch.zeros(7)}, "shape of features.3.bias"),
    ):
        save_file(bad, path)
        with pytest.raises(FileFormatError, match=says):
            load_network("lpips", tmp_path)
    path.write_bytes(b"rubbish")
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_network("lpips", tmp_path)


def test_files_that_would_run_code_are_not_read(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / EXPECTED["fvd"].files[1])
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_network("fvd", tmp_path)
    torch.save([torch.zeros(2)], tmp_path / EXPECTED["fvd"].files[1])
    with pytest.raises(FileFormatError, match="not a state dictionary"):
        load_network("fvd", tmp_path)


def test_bad_names_sizes_and_counts_are_refused(weights: Path) -> None:
    predicted, truth = videos()
    with pytest.raises(EvaluationError, match="'lipps'"):
        learned_metrics(["lipps"], predicted, truth, weights)
    with pytest.raises(EvaluationError, match="sides of at least 32"):
        lpips(load_network("lpips", weights), predicted[:, :20], truth[:, :20])
    with pytest.raises(EvaluationError, match="0 and 0 clips"):
        fvd(I3dFeatures(), [predicted], [truth])
    with pytest.raises(EvaluationError, match="1 and 4 frames"):
        fid(InceptionFeatures(), [predicted[:1]], [truth])


def test_the_verb_adds_them(weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kinema4d_ros.io.video import VideoWriter

    predicted, truth = videos(3, 48, 64)
    for name, video in (("a", predicted), ("b", truth)):
        with VideoWriter(tmp_path / f"{name}.mp4", 10, (64, 48)) as writer:
            for frame in video:
                writer.write(frame)
    files = [str(tmp_path / "a.mp4"), str(tmp_path / "b.mp4")]
    assert main(["metrics", *files, "--learned", "lpips", "--weights", str(weights)]) == 0
    assert "lpips" in capsys.readouterr().out
    assert main(["metrics", *files, "--learned", "lpips", "--weights", str(tmp_path)]) == 2
    assert "alexnet-owt-7be5be79.pth" in capsys.readouterr().err
