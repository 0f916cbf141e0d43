"""Grounding detectors of `transformers` with a few thousand random weights and a vocabulary of a few words."""

from __future__ import annotations

import json
from pathlib import Path

import torch

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", "a", "robot", "arm"]


def save_grounding_dino(folder: Path) -> Path:
    """Write model, tokenizer and image processor with `save_pretrained`."""
    from transformers import (
        BertConfig,
        BertTokenizerFast,
        GroundingDinoConfig,
        GroundingDinoForObjectDetection,
        SwinConfig,
    )

    folder.mkdir()
    torch.manual_seed(0)
    text = BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64,
    )  # fmt: skip
    config = GroundingDinoConfig(
        backbone_config=SwinConfig(
            image_size=64, embed_dim=8, depths=[1] * 4, num_heads=[1, 1, 2, 2], window_size=4, out_indices=[2, 3, 4]
        ),
        text_config=text.to_dict(), d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_queries=10, max_text_len=16,
    )  # fmt: skip
    GroundingDinoForObjectDetection(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    picture = {
        "image_processor_type": "GroundingDinoImageProcessor",
        "format": "coco_detection",
        "size": {"shortest_edge": 64, "longest_edge": 96},
        "do_pad": True,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(picture))
    return folder
