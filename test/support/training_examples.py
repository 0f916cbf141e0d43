"""Small synthetic episodes: a bar (the robot) sweeps across the image and pushes a square."""

from __future__ import annotations

import numpy as np

from kinema4d_model.pipeline.inputs import NetworkInputs
from kinema4d_model.preset import Preset
from kinema4d_model.training.examples import Example


class SweptSquares:
    """Examples of a preset's size; determined by the seed."""

    def __init__(self, preset: Preset, count: int, seed: int = 0) -> None:
        self._preset = preset
        self._seed = seed
        self.names = [f"square-{seed}-{i:04d}" for i in range(count)]
        self.identity = f"squares {seed} {count}"

    def load(self, number: int) -> Example:
        p = self._preset
        rng = np.random.default_rng((self._seed, number))
        shape = (p.frames, p.height, p.width)
        rows, columns = np.mgrid[: p.height, : p.width]
        background = rng.integers(90, 160, 3)
        world = np.clip(background + 8 * np.sin(rows / 5)[..., None], 0, 255).astype(np.uint8)
        colour, bar = rng.integers(0, 256, 3), rng.integers(180, 256, 3)
        top, left, size = rng.integers(4, p.height - 16), rng.integers(8, p.width - 20), 8
        rgb, composite = np.empty((*shape, 3), np.uint8), np.empty((*shape, 3), np.uint8)
        mask, focus = np.zeros(shape, bool), np.zeros(shape, bool)
        depth, still = np.full(shape, 0.8, np.float32), np.full(shape, 0.8, np.float32)
        for t in range(p.frames):
            x = int(t / (p.frames - 1) * (p.width - 4))
            moved = max(left, min(x + 4, p.width - size))
            focus[t] = (abs(rows - top - size / 2) <= size / 2) & (columns >= moved) & (columns < moved + size)
            at_rest = (abs(rows - top - size / 2) <= size / 2) & (columns >= left) & (columns < left + size)
            mask[t] = (columns >= x) & (columns < x + 4)
            for picture, points, square in ((rgb, depth, focus[t]), (composite, still, at_rest)):
                picture[t] = world
                picture[t][square] = colour
                points[t][square] = 0.6
                picture[t][mask[t]] = bar
                points[t][mask[t]] = 0.4
        focus &= ~mask

        def points(z: np.ndarray) -> np.ndarray:
            x, y = (columns + 0.5) / p.width, (rows + 0.5) / p.height
            return np.stack([np.broadcast_to(x, z.shape), np.broadcast_to(y, z.shape), z], -1).astype(np.float32)

        inputs = NetworkInputs(
            image=rgb[0],
            robot_rgb=np.where(mask[..., None], rgb, 0).astype(np.uint8),
            robot_xyz01=np.where(mask[..., None], points(depth), 0).astype(np.float32),
            robot_mask=mask,
            composite_rgb=composite,
            composite_xyz01=points(still),
            bounds=np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]),
            frames=p.frames,
        )
        return Example(self.names[number], inputs, rgb, points(depth), focus)
