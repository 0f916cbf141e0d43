"""Tests of model folders: saving, loading, and errors for mismatched parts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import load_file, save_file
from support.model_inputs import random_conditions, wake, with_variant
from support.official_files import write_official, write_wan

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.checkpoints.lora import adapter_names
from kinema4d_model.checkpoints.manifest import check_manifest, write_manifest
from kinema4d_model.preset import Preset
from kinema4d_ros.core.errors import ErrorCode, FileFormatError, GeneratorError

WEIGHTS = "diffusion_pytorch_model.safetensors"


@torch.no_grad()
def everything(bundle: ModelBundle) -> list[torch.Tensor]:
    """Return the outputs of each part of a bundle for fixed inputs."""
    generator = torch.Generator().manual_seed(2)
    image = torch.rand(1, 3, 32, 48, generator=generator) * 2 - 1
    noisy = torch.randn(1, 16, 3, 4, 12, generator=generator)
    conditions = random_conditions(bundle.preset)
    assert bundle.image_encoder is not None
    return [
        bundle.transformer(noisy, torch.tensor([300.0]), bundle.transformer.prepare(conditions)),
        bundle.codec.encode(image[:, :, None]),
        bundle.codec.decode(noisy[..., :6]),
        bundle.image_encoder(image),
    ]


@pytest.fixture
def saved(tiny_bundle: ModelBundle, tmp_path: Path) -> tuple[ModelBundle, Path]:
    wake(tiny_bundle.transformer)
    tiny_bundle.save_pretrained(tmp_path / "model")
    return tiny_bundle, tmp_path / "model"


def test_a_seed_makes_the_same_weights_and_keeps_the_generator_state(tiny: Preset) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second, other = (ModelBundle.from_preset(tiny, seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    a, b, c = (x.transformer.blocks[0].attn1.to_q.weight for x in (first, second, other))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert first.sha256 == second.sha256 != other.sha256


@pytest.mark.parametrize("verify", [False, True])
def test_loaded_weights_equal_the_saved_ones(saved: tuple[ModelBundle, Path], verify: bool) -> None:
    bundle, folder = saved
    loaded = ModelBundle.from_pretrained(folder, verify=verify)
    assert loaded.preset == bundle.preset
    assert loaded.sha256 == bundle.sha256
    for a, b in zip(everything(bundle), everything(loaded), strict=True):
        assert torch.equal(a, b)
    assert not [n for n, t in (*loaded.transformer.named_buffers(), *loaded.codec.named_buffers()) if t.is_meta]
    suffixes = {p.suffix for p in folder.rglob("*") if p.is_file()}
    assert suffixes == {".safetensors", ".json", ".yaml"}


def test_saving_again_replaces_the_folder_and_other_weights_have_another_hash(saved: tuple[ModelBundle, Path]) -> None:
    bundle, folder = saved
    before = bundle.sha256
    wake(bundle.transformer, seed=8)
    bundle.save_pretrained(folder)
    assert ModelBundle.from_pretrained(folder).sha256 == bundle.sha256 != before
    (folder.parent / "mine").mkdir()
    (folder.parent / "mine" / "thesis.txt").write_text("not a model")
    with pytest.raises(FileFormatError, match="holds something else"):
        bundle.save_pretrained(folder.parent / "mine")


def test_lower_precision_keeps_norms_and_time_in_float32(saved: tuple[ModelBundle, Path]) -> None:
    loaded = ModelBundle.from_pretrained(saved[1], dtype=torch.bfloat16)
    block = loaded.transformer.blocks[0]
    assert block.attn1.to_q.weight.dtype is torch.bfloat16
    assert block.norm2.weight.dtype is torch.float32
    assert block.scale_shift_table.dtype is torch.float32
    assert loaded.transformer.condition_embedder.time_embedder.linear_1.weight.dtype is torch.float32
    reference, lower = everything(saved[0])[0], everything(loaded)[0]
    assert lower.dtype is torch.bfloat16
    assert (lower.float() - reference).abs().mean() < 0.03 * reference.abs().mean()


def test_diffusers_own_classes_read_the_parts(saved: tuple[ModelBundle, Path]) -> None:
    bundle, folder = saved
    vae = AutoencoderKLWan.from_pretrained(folder / "vae")
    video = torch.rand(1, 3, 1, 32, 48)
    with torch.no_grad():
        assert torch.equal(vae.encode(video).latent_dist.mode(), bundle.codec.vae.encode(video).latent_dist.mode())


def test_a_network_with_adapters_is_not_saved_as_a_bundle(saved: tuple[ModelBundle, Path], tmp_path: Path) -> None:
    from kinema4d_model.checkpoints.official import load_official

    bundle, _ = saved
    assert bundle.preset.lora is not None
    load_official(bundle.transformer, write_official(tmp_path / "ckpt", bundle.transformer), bundle.preset.lora)
    with pytest.raises(GeneratorError, match="the network has adapters"):
        bundle.save_pretrained(tmp_path / "again")
    assert not (tmp_path / "again").exists()


def rewrite(path: Path, **changes: torch.Tensor | None) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    path.unlink()
    save_file(tensors, path)
    write_manifest(path.parents[1])


def test_a_mismatched_part_is_named_in_the_error(saved: tuple[ModelBundle, Path]) -> None:
    _, folder = saved
    rewrite(folder / "transformer" / WEIGHTS, **{"proj_out.bias": None, "extra": torch.zeros(1)})
    with pytest.raises(FileFormatError, match=r"1 missing: proj_out\.bias; 1 unexpected: extra"):
        ModelBundle.from_pretrained(folder)


def test_a_codec_of_another_shape_is_refused(saved: tuple[ModelBundle, Path]) -> None:
    _, folder = saved
    rewrite(folder / "vae" / WEIGHTS, **{"quant_conv.bias": torch.zeros(3)})
    with pytest.raises(FileFormatError, match=r"wrong shape: quant_conv\.bias is \[3\], not \[32\]"):
        ModelBundle.from_pretrained(folder)


def test_a_part_with_other_heads_or_statistics_is_refused_though_its_shapes_fit(
    saved: tuple[ModelBundle, Path],
) -> None:
    _, folder = saved
    for part, key, value in (
        ("transformer", "num_attention_heads", 4),
        ("vae", "latents_std", [1.0] * 16),
        ("image_encoder", "num_attention_heads", 4),
    ):
        path = folder / part / "config.json"
        original = path.read_text()
        path.write_text(json.dumps(json.loads(original) | {key: value}))
        write_manifest(folder)
        with pytest.raises(FileFormatError, match=f"{part}/config.json does not fit: {key} is"):
            ModelBundle.from_pretrained(folder)
        path.write_text("[]")
        write_manifest(folder)
        with pytest.raises(FileFormatError, match="is not a configuration"):
            ModelBundle.from_pretrained(folder)
        path.write_text(original)


def test_pickles_are_refused(saved: tuple[ModelBundle, Path]) -> None:
    _, folder = saved
    tensors = load_file(folder / "transformer" / WEIGHTS)
    torch.save(tensors, folder / "transformer" / "diffusion_pytorch_model.bin")
    (folder / "transformer" / WEIGHTS).unlink()
    write_manifest(folder)
    with pytest.raises(FileFormatError, match="only pickle files") as caught:
        ModelBundle.from_pretrained(folder)
    assert caught.value.code is ErrorCode.FILE_UNSUPPORTED


def test_truncation_is_found_by_size_and_a_flipped_bit_by_hash(saved: tuple[ModelBundle, Path]) -> None:
    _, folder = saved
    path = folder / "vae" / WEIGHTS
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-10])
    with pytest.raises(FileFormatError, match=r"vae/.* has [\d,]+ bytes instead of [\d,]+"):
        ModelBundle.from_pretrained(folder)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(FileFormatError, match="another sha256"):
        ModelBundle.from_pretrained(folder, verify=True)
    path.unlink()
    with pytest.raises(FileFormatError, match="is missing"):
        ModelBundle.from_pretrained(folder)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"preset\.yaml is missing") as caught:
        ModelBundle.from_pretrained(tmp_path)
    assert "from_wan" in caught.value.hint


@pytest.mark.parametrize("text", ["[]", '{"files": 3}', '{"files": {"../x": {"bytes": 1, "sha256": "0"}}}', "{"])
def test_an_invalid_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(FileFormatError, match=r"is not a manifest|outside its folder"):
        check_manifest(tmp_path)


@pytest.mark.parametrize("variant", ["act", "pm"])
def test_an_official_checkpoint_on_plain_wan(tiny: Preset, tmp_path: Path, variant: str) -> None:
    base = write_wan(tiny, tmp_path / "wan")
    plain = ModelBundle.from_wan(tmp_path / "wan", preset=tiny)
    plain.transformer.robot_tokens.load_state_dict(base.transformer.robot_tokens.state_dict())
    for a, b in zip(everything(base), everything(plain), strict=True):
        assert torch.equal(a, b)

    preset = with_variant(tiny, variant)
    folder = write_official(tmp_path / "ckpt", ModelBundle.from_preset(preset).transformer)
    loaded = ModelBundle.from_wan(tmp_path / "wan", folder, preset=preset)
    assert loaded.preset.robot.variant == variant
    assert plain.base_only
    assert not loaded.base_only
    assert adapter_names(loaded.transformer) == ("kinema4d",)
    assert loaded.sha256 != plain.sha256
    assert loaded.transformer.blocks[1].attn2.to_v.scaling == {"kinema4d": 0.5}
    assert (everything(loaded)[0] - everything(plain)[0]).abs().max() > 1e-2


def test_an_incomplete_wan_folder_is_refused(tiny: Preset, tmp_path: Path) -> None:
    write_wan(tiny, tmp_path / "wan")
    shards = sorted((tmp_path / "wan" / "transformer").glob("*.safetensors"))
    shards[-1].rename(tmp_path / "gone")
    with pytest.raises(FileFormatError, match=f"shard '{shards[-1].name}' is missing") as caught:
        ModelBundle.from_wan(tmp_path / "wan", preset=tiny)
    assert caught.value.code is ErrorCode.FILE_MISSING
    index = tmp_path / "wan" / "transformer" / f"{WEIGHTS}.index.json"
    document = json.loads(index.read_text())
    document["weight_map"] = {k: v for k, v in document["weight_map"].items() if v != shards[-1].name}
    index.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match=r"\d+ missing: "):
        ModelBundle.from_wan(tmp_path / "wan", preset=tiny)
    document["weight_map"] = {"x": "../../etc/passwd"}
    index.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match="is missing"):
        ModelBundle.from_wan(tmp_path / "wan", preset=tiny)
    index.write_text("[]")
    with pytest.raises(FileFormatError, match="not an index"):
        ModelBundle.from_wan(tmp_path / "wan", preset=tiny)
    shutil.rmtree(tmp_path / "wan" / "transformer")
    (tmp_path / "wan" / "transformer").mkdir()
    with pytest.raises(FileFormatError, match="holds no weights"):
        ModelBundle.from_wan(tmp_path / "wan", preset=tiny)
