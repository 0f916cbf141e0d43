"""Tests of loading by preset and folder: every known layout, and errors for weights that do not match the preset."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.model_inputs import with_variant
from support.official_files import random_tensors, write_official, write_wan

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.checkpoints.loading import check_bundle, load_bundle
from kinema4d_model.checkpoints.lora import load_lora, lora_shapes
from kinema4d_model.checkpoints.manifest import file_sha256, write_manifest
from kinema4d_model.preset import Preset, load_preset
from kinema4d_model.preset_parts import LoraSpec, WeightSource
from kinema4d_ros.core.errors import ErrorCode, FileFormatError

FOLDERS = {"act": "kinema4d_ckpt", "pm": "kinema4d_pmcond_ckpt"}
KEY = "blocks.1.attn2.to_v.weight"


@pytest.fixture(scope="module")
def released(tiny: Preset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make base/, kinema4d_ckpt/ (act) and kinema4d_pmcond_ckpt/ (pm) as released; read-only."""
    root = tmp_path_factory.mktemp("released")
    write_wan(tiny, root / "base")
    for seed, (variant, name) in enumerate(FOLDERS.items()):
        write_official(root / name, ModelBundle.from_preset(with_variant(tiny, variant)).transformer, seed)
    return root


@pytest.fixture
def copy(released: Path, tmp_path: Path) -> Path:
    """Copy the released folder for tests that damage it."""
    return Path(shutil.copytree(released, tmp_path / "model"))


def some_of(released: Path, folder: Path, **names: str) -> Path:
    """Make a folder with parts of the released one under these names."""
    folder.mkdir()
    for name, source in names.items():
        (folder / name).symlink_to(released / source)
    return folder


def test_a_trained_adapter_loads_as_a_checkpoint(tiny: Preset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base of an exported LoRA is found in the folder of the preset's own weights."""
    base = ModelBundle.from_preset(tiny, seed=5)
    adapter = write_official(tmp_path / "run" / "model", base.transformer)
    monkeypatch.setenv("KINEMA4D_CHECKPOINTS", str(tmp_path / "all"))
    with pytest.raises(FileFormatError, match="all/tiny does not exist"):
        load_bundle(tiny, adapter)
    write_wan(tiny, tmp_path / "all" / "tiny")
    loaded = load_bundle(tiny, adapter)
    plain = ModelBundle.from_wan(tmp_path / "all" / "tiny", preset=tiny)
    moved = (loaded.transformer.state_dict()[KEY] - plain.transformer.state_dict()[KEY]).abs().max()
    assert moved > 1e-3
    assert file_sha256(adapter / "pytorch_lora_weights.safetensors") in loaded.origin


@pytest.mark.parametrize("variant", ["act", "pm"])
def test_the_released_layout_is_checked_without_reading_and_described(
    tiny: Preset, released: Path, variant: str
) -> None:
    preset = with_variant(tiny, variant)
    loaded, checked = load_bundle(preset, released), check_bundle(preset, released)
    assert checked.sha256 == loaded.sha256
    assert all(p.is_meta for p in checked.transformer.parameters())
    assert not any(p.is_meta for p in loaded.transformer.parameters())
    said = loaded.describe()
    assert said["variant"] == variant
    assert said["flow shift"] == "3 (base 3)"
    assert said["normalisation"].startswith("per_axis (min-max of the sequence")
    assert "warning" not in said
    for name in ("pytorch_lora_weights.safetensors", "added_weights.safetensors"):
        assert f"{FOLDERS[variant]}/{name} {file_sha256(released / FOLDERS[variant] / name)}" in said["weights"]


@pytest.mark.parametrize("allow_base", [False, True])
@pytest.mark.parametrize(
    ("parts", "given", "variant", "code", "words"),
    [
        pytest.param(
            {"base": "base", "kinema4d_pmcond_ckpt": "kinema4d_pmcond_ckpt"}, "", "act", "FILE_MISSING",
            ["the 'pm' adapter (kinema4d_pmcond_ckpt/)", "is for 'act'", "/kinema4d_ckpt"], id="pm files, act preset",
        ),
        pytest.param(
            {"base": "base", "kinema4d_ckpt": "kinema4d_ckpt"}, "", "pm", "FILE_MISSING",
            ["the 'act' adapter (kinema4d_ckpt/)", "is for 'pm'", "/kinema4d_pmcond_ckpt"], id="act files, pm preset",
        ),
        pytest.param(
            {"base": "base", "kinema4d_ckpt": "kinema4d_pmcond_ckpt"}, "", "act", "FILE_MALFORMED",
            ["kinema4d_ckpt is a 'pm' checkpoint", "made for 'act'"], id="pm files under the name of act",
        ),
        pytest.param(
            {"base": "base", "kinema4d_pmcond_ckpt": "kinema4d_ckpt"}, "", "pm", "FILE_MALFORMED",
            ["kinema4d_pmcond_ckpt is a 'act' checkpoint", "made for 'pm'"], id="act files under the name of pm",
        ),
        pytest.param(
            {"adapter": "kinema4d_pmcond_ckpt"}, "adapter", "act", "FILE_MALFORMED",
            ["adapter is a 'pm' checkpoint", "made for 'act'"], id="a pm adapter alone, act preset",
        ),
        pytest.param(
            {"kinema4d_ckpt": "kinema4d_ckpt"}, "", "act", "FILE_MISSING",
            ["holds neither preset.yaml nor transformer/"], id="no base",
        ),
    ],
)  # fmt: skip
def test_an_adapter_that_is_not_the_preset_s_is_refused(
    tiny: Preset, released: Path, tmp_path: Path, parts: dict[str, str], given: str, variant: str, code: str,
    words: list[str], allow_base: bool,
) -> None:  # fmt: skip
    folder = some_of(released, tmp_path / "model", **parts) / given
    for opened in (load_bundle, check_bundle):
        with pytest.raises(FileFormatError) as caught:
            opened(with_variant(tiny, variant), folder, allow_base=allow_base)
        assert caught.value.code is ErrorCode[code]
        for word in words:
            assert word in str(caught.value)


@pytest.mark.parametrize("variant", ["act", "pm"])
def test_the_base_alone_is_refused_unless_allowed_and_is_recorded(
    tiny: Preset, released: Path, tmp_path: Path, variant: str
) -> None:
    preset = with_variant(tiny, variant)
    folder = some_of(released, tmp_path / "model", base="base")
    with pytest.raises(FileFormatError) as caught:
        load_bundle(preset, folder)
    assert caught.value.code is ErrorCode.FILE_MISSING
    assert "holds the base model and no adapter" in str(caught.value)
    assert f"{folder / FOLDERS[variant]}" in caught.value.expected
    assert "--allow-base" in caught.value.hint
    with pytest.raises(FileFormatError, match=f"give --checkpoint {released}"):
        load_bundle(preset, released / "base")

    alone = load_bundle(preset, folder, allow_base=True)
    assert alone.base_only
    assert alone.describe()["warning"] == f"The base model without the '{variant}' adapter was used."
    assert not alone.transformer.robot_injection.project.weight.any()
    assert not load_bundle(preset, released, allow_base=True).base_only


def test_a_model_folder_of_the_other_variant_is_refused(tiny: Preset, tmp_path: Path) -> None:
    ModelBundle.from_preset(with_variant(tiny, "pm")).save_pretrained(tmp_path / "model")
    with pytest.raises(FileFormatError, match=r"holds a 'pm' model, preset 'tiny' is for 'act'"):
        load_bundle(tiny, tmp_path / "model", allow_base=True)
    assert load_bundle(with_variant(tiny, "pm"), tmp_path / "model").preset.robot.variant == "pm"


def test_a_wrong_alpha_or_rank_is_refused(tiny: Preset, released: Path) -> None:
    """Released files state no alpha: their training used the scale 0.5."""
    with pytest.raises(FileFormatError, match=r"its alpha is 2 \(0.5 x rank.*the preset's is 4.*alpha: 2"):
        load_bundle(replace(tiny, lora=LoraSpec(4, 4)), released)
    with pytest.raises(FileFormatError, match=r"its rank is 4, the preset's is 8.*rank: 8"):
        load_bundle(replace(tiny, lora=LoraSpec(8, 4)), released)
    with pytest.raises(FileFormatError, match="has no lora"):
        load_bundle(replace(tiny, lora=None), released)


@pytest.mark.parametrize("key", ["flow_shift", "shift"])
def test_a_base_of_another_flow_shift_is_refused(tiny: Preset, copy: Path, key: str) -> None:
    config = copy / "base" / "scheduler" / "scheduler_config.json"
    config.write_text(json.dumps({key: 5.0}))
    with pytest.raises(FileFormatError, match=rf"scheduler_config.json does not fit: {key} is 5.0, the preset's is 3"):
        load_bundle(tiny, copy)
    # The sampler's shift does not change the shift of the base's training.
    with pytest.raises(FileFormatError, match=f"{key} is 5.0"):
        load_bundle(tiny, copy, sampler={"shift": 5.0})
    other = replace(tiny, sampler=replace(tiny.sampler, trained_shift=5.0))
    assert load_bundle(other, copy).describe()["flow shift"] == "3 (base 5)"


def test_sampling_with_another_shift_than_the_base_s_is_allowed(tiny: Preset, released: Path) -> None:
    assert load_bundle(tiny, released, sampler={"shift": 7.0}).describe()["flow shift"] == "7 (base 3)"
    for name in ("wan14b", "wan14b_pm", "wan14b_fast", "wan14b_24gb", "wan14b_pm_24gb"):
        assert load_preset(name).sampler.base_shift == 3.0
        assert load_preset(name).robot.variant == ("pm" if "_pm" in name else "act")


@pytest.mark.parametrize("layout", ["readme", "nested", "hub"])
def test_layouts_of_the_released_readme_and_of_the_hub_are_found(
    tiny: Preset, released: Path, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = WeightSource("base", "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers", ("*",))
    preset = replace(with_variant(tiny, "pm"), weights=(source,))
    root = tmp_path / "Kinema4D"
    places = {
        "readme": ("pretrained/Wan2.1-I2V-14B-480P-Diffusers", "training/kinema4d_pmcond_ckpt"),
        "nested": ("Wan2.1-I2V-14B-480P-Diffusers", "kinema4d_pmcond_ckpt/kinema4d_pmcond_ckpt"),
        "hub": ("../default/tiny/base", "kinema4d_pmcond_ckpt"),
    }
    monkeypatch.setenv("KINEMA4D_CHECKPOINTS", str(tmp_path / "default"))
    for place, name in zip(places[layout], ("base", "kinema4d_pmcond_ckpt"), strict=True):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "Kinema4D").mkdir(exist_ok=True)
        (root / place).symlink_to(released / name)
    assert check_bundle(preset, root).sha256 == check_bundle(preset, released).sha256


def test_a_base_without_a_scheduler_loads_and_is_recorded(tiny: Preset, copy: Path) -> None:
    shutil.rmtree(copy / "base" / "scheduler")
    assert load_bundle(tiny, copy).describe()["flow shift"] == "3 (not stated by the base)"


def test_two_bases_of_equal_sizes_have_different_hashes(tiny: Preset, released: Path, copy: Path) -> None:
    path = copy / "base" / "vae" / "diffusion_pytorch_model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    tensors["quant_conv.bias"] += 1
    save_file(tensors, path, metadata={"format": "pt"})
    one, other = check_bundle(tiny, released), check_bundle(tiny, copy)
    assert one.sha256 != other.sha256
    # Hashes from a manifest are not recomputed and give the same result.
    write_manifest(copy / "base")
    assert check_bundle(tiny, copy).sha256 == other.sha256


def rewrite(path: Path, **changes: torch.Tensor | None) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()} | changes
    path.unlink()
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def last_shard(root: Path) -> Path:
    return sorted((root / "base" / "transformer").glob("*.safetensors"))[-1]


VAE = "base/vae/diffusion_pytorch_model.safetensors"
CLIP = "base/image_encoder/model.safetensors"
LORA = "kinema4d_ckpt/pytorch_lora_weights.safetensors"
ADDED = "kinema4d_ckpt/added_weights.safetensors"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda r: rewrite(last_shard(r), extra=torch.ones(1)), "transformer does not fit: 1 unexpected: extra"),
        (
            # Values that initialisation would overwrite.
            lambda r: rewrite(last_shard(r), **{"robot_tokens.position": torch.ones(1, 8, 3, 2, 3)}),
            r"1 unexpected: robot_tokens\.position",
        ),
        (
            lambda r: rewrite(last_shard(r), **{"blocks.0.norm_added_q.weight": torch.ones(1)}),
            r"1 unexpected: blocks\.0\.norm_added_q\.weight",
        ),
        (
            lambda r: shutil.copy(last_shard(r), last_shard(r).with_name("diffusion_pytorch_model-old.safetensors")),
            r"holds unused weights: diffusion_pytorch_model-old\.safetensors",
        ),
        (
            lambda r: save_file({}, r / "base/transformer/diffusion_pytorch_model.safetensors"),
            r"holds unused weights: diffusion_pytorch_model-00001",
        ),
        (lambda r: rewrite(r / VAE, **{"quant_conv.bias": None}), r"vae does not fit: 1 missing: quant_conv\.bias"),
        (lambda r: rewrite(r / VAE, extra=torch.ones(1)), "vae does not fit: 1 unexpected: extra"),
        (lambda r: rewrite(r / CLIP, extra=torch.ones(1)), "image_encoder does not fit: 1 unexpected: extra"),
        (
            lambda r: rewrite(r / CLIP, **{"post_layernorm.bias": torch.ones(32)}),
            r"image_encoder does not fit: 1 twice: .*post_layernorm\.bias",
        ),
        (
            lambda r: rewrite(r / CLIP, **{"text_model.embeddings.position_ids": torch.ones(1)}),
            r"image_encoder does not fit: 1 unexpected: text_model\.embeddings\.position_ids",
        ),
        (lambda r: rewrite(r / LORA, extra=torch.ones(1)), r"lora_weights\S+ does not fit: 1 unexpected: extra"),
        (lambda r: rewrite(r / ADDED, arm_ln=torch.ones(1)), r"added_weights\S+ does not fit: 1 unexpected: arm_ln"),
        (lambda r: rewrite(r / ADDED, arm_pos_emb=None), r"added_weights\S+ does not fit: 1 missing: arm_pos_emb"),
    ],
)  # fmt: skip
def test_unused_and_missing_tensors_are_named(
    tiny: Preset, copy: Path, spoil: Callable[[Path], object], words: str
) -> None:
    spoil(copy)
    for opened in (load_bundle, check_bundle):
        with pytest.raises(FileFormatError, match=words):
            opened(tiny, copy)


def test_a_lora_with_unused_tensors_is_refused(tiny: Preset, tmp_path: Path) -> None:
    """diffusers drops them silently when it translates the file."""
    transformer = ModelBundle.from_preset(tiny).transformer
    shapes = lora_shapes(transformer, 2)
    tensors = {k.removeprefix("transformer."): v for k, v in random_tensors(shapes, 0).items()}
    for old, new in (("attn1", "self_attn"), ("attn2", "cross_attn"), ("to_out.0", "o"), (".to_", ".")):
        tensors = {k.replace(old, new): v for k, v in tensors.items()}
    tensors = {f"diffusion_model.{k}": v for k, v in tensors.items()}
    path = tmp_path / "extra.safetensors"
    save_file(tensors, path)
    load_lora(transformer, path, "sound")
    for name in ("blocks.0.attn1.norm_q.diff", "blocks.0.attn1.to_q.dora_scale"):
        save_file(tensors | {f"diffusion_model.{name}": torch.ones(1)}, path)
        with pytest.raises(FileFormatError, match=f"1 not used: diffusion_model.{name}"):
            load_lora(transformer, path, name)
    save_file(tensors | {"diffusion_model.blocks.0.gate.alpha": torch.ones(1)}, path)
    with pytest.raises(FileFormatError, match="is not a LoRA for Wan"):
        load_lora(transformer, path, "other")


@pytest.mark.parametrize(("alpha", "scale"), [(None, 1.0), (6.0, 3.0)])
def test_a_lora_is_scaled_by_the_alpha_in_its_header(
    tiny: Preset, released: Path, tmp_path: Path, alpha: float | None, scale: float
) -> None:
    bare = load_bundle(tiny, released).transformer.state_dict()[KEY]
    tensors = random_tensors(lora_shapes(ModelBundle.from_preset(tiny, device="meta").transformer, 2), 0)
    stated = {} if alpha is None else {"lora_adapter_metadata": json.dumps({"transformer.lora_alpha": alpha})}
    save_file(tensors, tmp_path / "extra.safetensors", metadata={"format": "pt", **stated})
    found = load_bundle(tiny, released, tmp_path / "extra.safetensors").transformer.state_dict()[KEY]
    name = f"transformer.{KEY.removesuffix('.weight')}"
    delta = tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"]
    assert torch.allclose(found - bare, scale * delta, atol=1e-5)
