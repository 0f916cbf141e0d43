"""A model by preset and folder: whichever layout the folder has is opened by the same call."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.official_files import write_official

from kinema4d_model.bundle import ModelBundle
from kinema4d_model.checkpoints.manifest import file_sha256
from kinema4d_model.loading import load_bundle
from kinema4d_model.preset import load_preset
from kinema4d_ros.errors import FileFormatError


def test_a_trained_adapter_opens_by_the_ordinary_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The export of a LoRA training is a checkpoint: its base is where the preset's own weights are."""
    tiny = load_preset("tiny")
    base = ModelBundle.from_preset(tiny, seed=5)
    adapter = write_official(tmp_path / "run" / "model", base.transformer)
    monkeypatch.setenv("KINEMA4D_CHECKPOINTS", str(tmp_path / "all"))
    with pytest.raises(FileFormatError, match="all/tiny does not exist"):
        load_bundle(tiny, adapter)
    base.save_pretrained(tmp_path / "all" / "tiny")
    (tmp_path / "all" / "tiny" / "preset.yaml").unlink()
    loaded = load_bundle(tiny, adapter)
    plain = ModelBundle.from_wan(tmp_path / "all" / "tiny", preset=tiny)
    key = "blocks.1.attn2.to_v.weight"
    moved = (loaded.transformer.state_dict()[key] - plain.transformer.state_dict()[key]).abs().max()
    assert moved > 1e-3
    assert file_sha256(adapter / "pytorch_lora_weights.safetensors") in loaded.origin
