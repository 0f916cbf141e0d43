"""Metrics that look through pretrained networks: LPIPS, FID, FVD, latent L2.

weights folder ─> weights     which file is expected where; a missing one is an error, never a substitute
               ─> alexnet, inception, i3d
pictures       ─> learned     LPIPS, FID and FVD; latent L2 by a model's own codec
"""

from kinema4d_model.metrics.learned import LEARNED, fid, fvd, latent_l2, learned_metrics, lpips
from kinema4d_model.metrics.weights import EXPECTED, load_network

__all__ = ["EXPECTED", "LEARNED", "fid", "fvd", "latent_l2", "learned_metrics", "load_network", "lpips"]
