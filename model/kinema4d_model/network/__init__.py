"""Network: diffusers' `WanTransformer3DModel` with two halves side by side and robot tokens in place of text."""

from __future__ import annotations

from kinema4d_model.network.transformer import KinemaTransformer, Prepared

__all__ = ["KinemaTransformer", "Prepared"]
