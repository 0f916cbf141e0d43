"""Outputs of the released Kinema4D code on tiny random weights, reduced to what a repository can hold.

    python -m support.released FULL test/golden/released      (from test/; FULL: the complete outputs)

The released code (with the diffusers 0.34 and transformers 4.49 that it pins) ran in float32 on tiny random weights in
the released layout: 9 frames of 240 x 480, six steps of its double pass. Kept unchanged: the weights of both variants,
the presets, the inputs (image, robot image and pointmap as bytes, mask) and CLIP's tokens. Of every other output each
n-th number is kept, n prime, at least 4,000 numbers of a tensor and 20,000 bytes of the decoded frames (rounded to the
nearest level; the released script truncates when it writes its mp4 files). The noise is that of seed 42.
"""

from __future__ import annotations

import io
import lzma
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parents[1] / "golden" / "released"
VARIANTS = ("act", "pm")
STRIDES = {
    "condition": 53,
    "arm_cond": 23,
    "single_500": 43,
    "pass0_out": 43,
    "pass1_out": 43,
    "final": 43,
    "decoded_u8": 311,
}
"""Every n-th number is kept, in the order of memory."""
WHOLE = ("image_embeds", "timesteps", "t0")
INPUTS = "inputs.npz.xz"


def every(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return the numbers of a complete output that the reduced one keeps."""
    return tensor.flatten()[:: STRIDES[name]]


def read_inputs(folder: Path) -> dict[str, NDArray[np.uint8]]:
    """Read image (240, 480, 3), rgb and xyz (9, 240, 480, 3) uint8 and mask (9, 240, 480) bool."""
    with np.load(io.BytesIO(lzma.decompress((folder / INPUTS).read_bytes()))) as stored:
        return {name: stored[name] for name in stored}


def reduce_outputs(full: Path, out: Path) -> None:
    """Write the reduced folder from the complete one."""
    shutil.copytree(full / "model", out / "model", dirs_exist_ok=True)
    plain = io.BytesIO()
    with np.load(full / "inputs.npz") as stored:
        np.savez(plain, **{name: stored[name] for name in stored})
    (out / INPUTS).write_bytes(lzma.compress(plain.getvalue(), preset=9))
    for variant in VARIANTS:
        shutil.copy(full / f"preset_{variant}.yaml", out)
        outputs = load_file(full / f"official_{variant}.safetensors")
        kept = {name: every(outputs[name], name).clone() for name in STRIDES}
        save_file(kept | {name: outputs[name] for name in WHOLE}, out / f"official_{variant}.safetensors")


if __name__ == "__main__":
    reduce_outputs(Path(sys.argv[1]), Path(sys.argv[2]))
