"""Learned generator: Kinema4D's network, conditioning and checkpoints on diffusers, from nano to Wan 14B.

    first image ──┐
    robot RGB ────┤ conditioning/ + codec/        network/                 sampling/            pipeline/
    robot XYZ ────┼─> mask | condition | robot ─> KinemaTransformer ─────> latents [RGB|XYZ] ─> decode, exact robot,
    robot mask ───┘   latents, image tokens       (Wan + robot tokens)     a few steps          metres

`preset.py` defines the size of each part, `checkpoints/` loads the weights, `checkpoints/bundle.py` groups the parts.
Needs torch and diffusers; does not import ROS.
"""

from __future__ import annotations

import logging

# Importing diffusers imports torchao, which warns about CUDA kernels that a CPU build of torch cannot load.
for _name in ("torchao", "torch.utils._pytree", "diffusers.quantizers.torchao.torchao_quantizer"):
    logging.getLogger(_name).setLevel(logging.ERROR)
