"""Boxes from text: a grounding detector of `transformers`, Grounding DINO or OWLv2, loaded from a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kinema4d_model.checkpoints.tensor_files import find_shards
from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.io.files import read_bytes

__all__ = ["KINDS", "GroundingDetector"]

KINDS = ("grounding-dino", "owlv2", "owlvit")


class GroundingDetector:
    """Detector of objects described by text.

    Args:
        folder: `config.json`, safetensors, tokenizer and preprocessor files, as `save_pretrained` writes them.
        device: of torch.
        threshold: boxes below this score are discarded.
    """

    def __init__(self, folder: str | Path, *, device: str = "cpu", threshold: float = 0.3) -> None:
        if not 0.0 <= threshold <= 1.0:
            raise KinemaError(f"threshold is {threshold}", expected="0 to 1", code=ErrorCode.ARGUMENT_INVALID)
        root = Path(folder)
        self.kind = _kind(root)
        find_shards(root, "model")  # raises unless the weights are safetensors
        from transformers import AutoModelForZeroShotObjectDetection, AutoProcessor

        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            self._processor = AutoProcessor.from_pretrained(root, **options)  # nosec B615 - local files only
            model = AutoModelForZeroShotObjectDetection.from_pretrained(  # nosec B615 - local files only
                root, use_safetensors=True, **options
            )
        except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
            raise FileFormatError(
                f"the detector in {root} cannot be loaded: {error}"[:400],
                expected="a folder written by `save_pretrained` of model and processor",
            ) from None
        self._model = model.to(device).eval()
        self._device, self._threshold = device, threshold

    @torch.no_grad()
    def detect(self, image: NDArray[np.uint8], text: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Detect boxes (B, 4) left, top, right, bottom in pixels, inside the image, best first, and scores (B,).

        Args:
            image: (H, W, 3) uint8 RGB.
            text: description of the object; Grounding DINO accepts several, separated by dots.
        """
        height, width = image.shape[:2]
        words = text.strip().lower()
        query = (words if words.endswith(".") else words + ".") if self.kind == "grounding-dino" else [[words]]
        inputs = self._processor(images=image, text=query, return_tensors="pt").to(self._device)
        outputs = self._model(**inputs)
        sizes = torch.tensor([[height, width]])
        if self.kind == "grounding-dino":
            found = self._processor.post_process_grounded_object_detection(
                outputs, inputs.input_ids, threshold=self._threshold, text_threshold=0.0, target_sizes=sizes
            )[0]
        else:
            found = self._processor.post_process_grounded_object_detection(
                outputs, threshold=self._threshold, target_sizes=sizes
            )[0]
        boxes = np.asarray(found["boxes"].cpu(), np.float64).reshape(-1, 4)
        scores = np.asarray(found["scores"].cpu(), np.float64)
        boxes = np.clip(boxes, 0, (width, height, width, height))
        solid = ((boxes[:, 2:] - boxes[:, :2]) >= 1).all(axis=1)
        order = np.argsort(-scores[solid], kind="stable")
        return boxes[solid][order], scores[solid][order]


def _kind(folder: Path) -> str:
    if not folder.is_dir():
        raise FileFormatError(
            f"{folder} is not a folder", expected="a folder with a grounding detector", code=ErrorCode.FILE_MISSING
        )
    try:
        kind = json.loads(read_bytes(folder / "config.json", 10_000_000)).get("model_type")
    except (ValueError, AttributeError, RecursionError):
        kind = None
    if kind not in KINDS:
        raise FileFormatError(
            f"{folder / 'config.json'} has model_type {kind!r}",
            expected=f"one of {', '.join(KINDS)}",
            code=ErrorCode.FILE_UNSUPPORTED,
        )
    return str(kind)
