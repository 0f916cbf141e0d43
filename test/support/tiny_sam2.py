"""SAM 2's classes at test size: 0.66 million random weights, 128 pixels."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from kinema4d_model.segmentation.sam2_weights import build_sam2
from kinema4d_ros.io.files import write_yaml

CONFIG = "configs/sam2.1/sam2.1_hiera_t.yaml"
_ATTENTION = "model.memory_attention.layer"
OVERRIDES = [
    "model.image_size=128",
    "model.image_encoder.trunk.embed_dim=8",
    "model.image_encoder.trunk.stages=[1,1,2,1]",
    "model.image_encoder.trunk.global_att_blocks=[3]",
    "model.image_encoder.neck.backbone_channel_list=[64,32,16,8]",
    "model.image_encoder.neck.d_model=32",
    "model.image_encoder.neck.position_encoding.num_pos_feats=32",
    "model.memory_attention.d_model=32",
    "model.memory_attention.num_layers=1",
    f"{_ATTENTION}.d_model=32",
    f"{_ATTENTION}.dim_feedforward=32",
    f"{_ATTENTION}.self_attention.embedding_dim=32",
    f"{_ATTENTION}.self_attention.feat_sizes=[8,8]",
    f"{_ATTENTION}.cross_attention.feat_sizes=[8,8]",
    f"{_ATTENTION}.cross_attention.embedding_dim=32",
    f"{_ATTENTION}.cross_attention.kv_in_dim=16",
    "+model.memory_encoder.in_dim=32",
    "model.memory_encoder.out_dim=16",
    "model.memory_encoder.position_encoding.num_pos_feats=16",
    "model.memory_encoder.fuser.layer.dim=32",
    "+model.memory_encoder.mask_downsampler.embed_dim=32",
]


def tiny_sam2(seed: int = 0) -> nn.Module:
    """Make a network that always reports an object; with random weights this would be arbitrary."""
    torch.manual_seed(seed)
    model: nn.Module = build_sam2(CONFIG, OVERRIDES)
    with torch.no_grad():
        head = model.get_submodule("sam_mask_decoder.pred_obj_score_head.layers.2")
        head.bias.fill_(20.0)  # type: ignore[union-attr, operator]
    return model.eval()


def save_tiny(folder: Path, model: nn.Module, suffix: str = ".safetensors") -> Path:
    """Write a weights folder for `load_sam2`."""
    folder.mkdir(exist_ok=True)
    state = {name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}
    if suffix == ".safetensors":
        save_file(state, folder / "tiny.safetensors")
    else:
        torch.save({"model": state}, folder / "tiny.pt")
    write_yaml(folder / "sam2.yaml", {"config": CONFIG, "overrides": OVERRIDES})
    return folder
