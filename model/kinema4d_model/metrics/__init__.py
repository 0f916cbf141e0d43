"""Metrics based on pretrained networks: LPIPS, FID, FVD, latent L2.

weights folder ─> weights     expected files; a missing one is an error, there is no substitute
               ─> networks    AlexNet, Inception, I3D
videos         ─> learned     LPIPS, FID and FVD; latent L2 with a model's own codec
"""

from kinema4d_model.metrics.learned import LEARNED, fid, fvd, latent_l2, learned_metrics, lpips
from kinema4d_model.metrics.weights import EXPECTED, load_network

__all__ = ["EXPECTED", "LEARNED", "fid", "fvd", "latent_l2", "learned_metrics", "load_network", "lpips"]
