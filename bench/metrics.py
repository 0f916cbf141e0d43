"""CPU time of the metrics against plain loops over torchmetrics and Open3D, in one run.

    python bench/metrics.py            4 frames of 480 x 720
    python bench/metrics.py --quick    2 frames of 96 x 144: a smoke test

A table with boxes, rendered twice: as truth, and with depth noise of 2 mm and colour noise as a prediction.

    pictures   ours: `psnr` and `ssim`         peer: torchmetrics' functional PSNR and SSIM, frame by frame
    clouds     ours: `frame_distances`         peer: Open3D's compute_point_cloud_distance both ways, frame by frame
    steady     ours: `consecutive_distances`   peer: the same Open3D loop over consecutive frames of the truth

Both alternate; the best run of each counts, in CPU seconds of the process with all its threads. Results must agree to
1e-5 before they are timed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import open3d
import torch
from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

from kinema4d_ros.evaluation import consecutive_distances, frame_distances, psnr, ssim

LIMIT_M = 0.01


def scene(frames: int, height: int, width: int) -> tuple[np.ndarray, ...]:
    """Make (rgb, xyz) of prediction and truth, (T, H, W, 3)."""
    rng = np.random.default_rng(0)
    v, u = np.mgrid[0:height, 0:width]
    x, y = (u - width / 2) / width, (v - height / 2) / width
    xyz = np.empty((frames, height, width, 3), np.float32)
    rgb = np.empty((frames, height, width, 3))
    for t in range(frames):
        z = 1.0 - 0.3 * y
        shade = 120 + 60 * np.sin(40 * x + 3 * y)
        for k in range(5):
            # Boxes on the table; the last one moves.
            left, top = -0.4 + 0.17 * k + (0.02 * t if k == 4 else 0.0), -0.1 + 0.05 * k
            inside = (x > left) & (x < left + 0.08) & (y > top) & (y < top + 0.1)
            z, shade = np.where(inside, z - 0.06, z), np.where(inside, 40 * k + 30, shade)
        xyz[t] = np.stack([x * z, y * z, z], axis=-1)
        rgb[t] = shade[..., None] * np.array([1.0, 0.8, 0.6])
    noisy = xyz * (1 + rng.normal(0, 0.002, xyz.shape[:3])[..., None])
    pictures = np.clip(rgb + rng.normal(0, 6, rgb.shape), 0, 255)
    return pictures.astype(np.uint8), noisy.astype(np.float32), np.clip(rgb, 0, 255).astype(np.uint8), xyz


def peer_pictures(predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Compute PSNR and SSIM (T, 2), the latter without the border that torchmetrics fills by reflection."""
    rows = []
    for a, b in zip(predicted, truth, strict=True):
        x, y = (torch.from_numpy(f).permute(2, 0, 1)[None].float() for f in (a, b))
        _, full = structural_similarity_index_measure(x, y, data_range=255.0, return_full_image=True)
        rows.append((float(peak_signal_noise_ratio(x, y, data_range=255.0)), float(full[..., 5:-5, 5:-5].mean())))
    return np.array(rows)


def our_pictures(predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return np.stack([psnr(predicted, truth), ssim(predicted, truth)], axis=1)


def peer_clouds(pairs: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Compute Chamfer L1, L2 and F-score (T, 3)."""
    rows = []
    for a, b in pairs:
        one, two = (open3d.geometry.PointCloud(open3d.utility.Vector3dVector(c.reshape(-1, 3))) for c in (a, b))
        there, back = (
            np.asarray(one.compute_point_cloud_distance(two)),
            np.asarray(two.compute_point_cloud_distance(one)),
        )
        p, r = (there < LIMIT_M).mean(), (back < LIMIT_M).mean()
        rows.append(
            ((there.mean() + back.mean()) / 2, (there**2).mean() + (back**2).mean(), 2 * p * r / max(p + r, 1e-9))
        )
    return np.array(rows)


def numbers(found: list) -> np.ndarray:
    return np.array([(d.chamfer_l1, d.chamfer_l2, d.f_score[0]) for d in found])


def best(work: Callable[[], object], turns: int) -> float:
    spent = []
    for _ in range(turns):
        begun = time.process_time()
        work()
        spent.append(time.process_time() - begun)
    return min(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    frames, height, width = (2, 96, 144) if quick else (4, 480, 720)
    rgb_p, xyz_p, rgb_t, xyz_t = scene(frames, height, width)
    tasks: dict[str, tuple[Callable[[], np.ndarray], Callable[[], np.ndarray]]] = {
        "pictures": (lambda: our_pictures(rgb_p, rgb_t), lambda: peer_pictures(rgb_p, rgb_t)),
        "clouds": (
            lambda: numbers(frame_distances(xyz_p, xyz_t, (LIMIT_M,))),
            lambda: peer_clouds(list(zip(xyz_p, xyz_t, strict=True))),
        ),
        "steady": (
            lambda: numbers(consecutive_distances(xyz_t, (LIMIT_M,))),
            lambda: peer_clouds([(xyz_t[t + 1], xyz_t[t]) for t in range(frames - 1)]),
        ),
    }
    result: dict[str, object] = {"frames": frames, "size": f"{width}x{height}", "cpu": platform.machine()}
    for name, (ours, peer) in tasks.items():
        # The first call compiles; its results are compared, its time is not counted.
        mine, theirs = ours(), peer()
        difference = float((np.abs(mine - theirs) / np.maximum(1.0, np.abs(theirs))).max())
        assert difference < 1e-5, f"{name} differ by {difference}"
        ours_s, peer_s = best(ours, 3), best(peer, 3)
        print(f"{name:<9} ours {1e3 * ours_s / frames:8.1f} ms per frame, peer {1e3 * peer_s / frames:8.1f} ms, "
              f"ratio {peer_s / ours_s:6.2f}, numbers differ by {difference:.1e}")  # fmt: skip
        result[name] = {"ours_ms": round(1e3 * ours_s / frames, 2), "peer_ms": round(1e3 * peer_s / frames, 2)}
        result[f"{name}_ratio"] = round(peer_s / ours_s, 2)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
