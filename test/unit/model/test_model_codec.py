from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from kinema4d_model.checkpoints.bundle import ModelBundle


@pytest.mark.parametrize(("frames", "latent"), [(1, 1), (5, 2), (9, 3), (13, 4)])
def test_latent_shape_follows_the_codec_factors(tiny_bundle: ModelBundle, frames: int, latent: int) -> None:
    video = torch.rand(1, 3, frames, 16, 24) * 2 - 1
    with torch.no_grad():
        latents = tiny_bundle.codec.encode(video)
        decoded = tiny_bundle.codec.decode(latents)
    assert latents.shape == (1, 16, latent, 2, 3)
    assert decoded.shape == video.shape
    assert decoded.abs().max() <= 1


def test_pairs_are_two_halves_with_their_own_statistics(tiny_bundle: ModelBundle) -> None:
    codec = tiny_bundle.codec
    rgb, xyz = torch.rand(2, 2, 3, 5, 16, 24) * 2 - 1
    with torch.no_grad():
        pair = codec.encode_pair(rgb, xyz)
        torch.testing.assert_close(pair[..., :3], codec.encode(rgb), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(pair[..., 3:], (codec.encode(xyz) + 0.17) / 1.36, rtol=1e-4, atol=1e-5)
        left, right = codec.decode_pair(pair)
        torch.testing.assert_close(left, codec.decode(codec.encode(rgb)), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(right, codec.decode(codec.encode(xyz)), rtol=1e-4, atol=1e-5)
    latents = torch.randn(1, 16, 2, 3, 4)
    torch.testing.assert_close(codec.from_xyz(codec.to_xyz(latents)), latents)


def test_the_first_frame_s_latent_does_not_depend_on_later_frames(tiny_bundle: ModelBundle) -> None:
    video = torch.rand(1, 3, 9, 16, 24) * 2 - 1
    other = video.clone()
    other[:, :, 1:] *= -1
    with torch.no_grad():
        a, b = tiny_bundle.codec.encode(video), tiny_bundle.codec.encode(other)
    torch.testing.assert_close(a[:, :, :1], b[:, :, :1])
    assert (a[:, :, 1:] - b[:, :, 1:]).abs().max() > 1e-4


@pytest.mark.parametrize("size", [(32, 48), (48, 32), (100, 131)])
def test_image_processing_equals_that_of_transformers(tiny_bundle: ModelBundle, size: tuple[int, int]) -> None:
    assert tiny_bundle.image_encoder is not None
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    processor = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    theirs = processor(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
    ours = tiny_bundle.image_encoder.preprocess(torch.from_numpy(pixels).permute(2, 0, 1)[None] / 127.5 - 1)
    assert (ours - theirs).abs().max() < 1e-5
    assert ours.shape == theirs.shape


def test_image_tokens_are_the_state_before_the_last_layer(tiny_bundle: ModelBundle) -> None:
    encoder = tiny_bundle.image_encoder
    assert encoder is not None
    image = torch.rand(2, 3, 32, 48) * 2 - 1
    tokens = encoder(image)
    assert tokens.shape == (2, 5, 32)
    with torch.no_grad():
        states = encoder.clip(pixel_values=encoder.preprocess(image), output_hidden_states=True).hidden_states
    assert len(states) == 3
    assert torch.equal(tokens, states[1])
