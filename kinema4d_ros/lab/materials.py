"""Appearance of the lab: materials, procedural table textures, and room styles chosen by a seed."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["TEXTURE_PIXELS", "Material", "Style", "linear", "table_texture"]

TEXTURE_PIXELS = 1024

TABLES = ("oak", "walnut", "plain", "checker")

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Material:
    """A surface.

    Attributes:
        rgb: linear, 0 to 1.
        mirror: reflectance at normal incidence, 0.02 to 0.3; grazing views always reflect.
        gloss: exponent of highlights; also sets the sharpness of the reflected room.
        textured: take the colour from the table's texture instead of `rgb`.
    """

    rgb: tuple[float, float, float]
    mirror: float = 0.04
    gloss: float = 40.0
    textured: bool = False


@dataclass(frozen=True)
class Style:
    """Appearance of the room.

    Attributes:
        table: one of `TABLES`.
        wall_rgb: sRGB, 0 to 1.
        lamp: (3,) position of the key light, base frame, metres.
        warmth: -1 (cold) to 1 (warm) light.
        seed: of the texture's noise.
        tint: multiplies the table's colours, sRGB-like, 0 to 1.5.
        robot_rgb: sRGB colour that replaces the colour of the robot's shell; rubber keeps its own.
    """

    table: str = "oak"
    wall_rgb: tuple[float, float, float] = (0.80, 0.83, 0.86)
    lamp: tuple[float, float, float] = (0.55, -0.85, 1.55)
    warmth: float = 0.25
    seed: int = 0
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0)
    robot_rgb: tuple[float, float, float] | None = None

    @classmethod
    def varied(cls, seed: int) -> Style:
        """Draw a style by seed, for training data; the default style is for demonstrations."""
        rng = np.random.default_rng([seed, 77])
        tone = rng.uniform(0.55, 0.88)
        tint = rng.uniform(-0.04, 0.04, 3)
        wall = tuple(float(v) for v in np.clip(tone + tint, 0.0, 1.0))
        turn, height = rng.uniform(-np.pi, np.pi), rng.uniform(1.2, 1.8)
        lamp = (float(0.25 + 0.85 * np.cos(turn)), float(0.75 * np.sin(turn)), float(height))
        return cls(
            table=TABLES[int(rng.integers(len(TABLES)))],
            wall_rgb=wall,  # type: ignore[arg-type]
            lamp=lamp,
            warmth=float(rng.uniform(-0.6, 0.8)),
            seed=int(rng.integers(1 << 16)),
        )


def linear(srgb: ArrayLike) -> tuple[float, float, float]:
    """Convert an sRGB colour to linear light (3,), both 0 to 1."""
    r, g, b = srgb_to_light(np.asarray(srgb, dtype=np.float64)[:3])
    return float(r), float(g), float(b)


def srgb_to_light(srgb: ArrayLike) -> NDArray[np.float64]:
    """Convert sRGB values of any shape to linear light, both 0 to 1."""
    c = np.asarray(srgb, dtype=np.float64)
    return np.asarray(np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4))


def light_to_srgb(light: ArrayLike) -> NDArray[np.float64]:
    """Convert linear light of any shape to sRGB values, both 0 to 1."""
    y = np.asarray(light, dtype=np.float64)
    return np.asarray(np.where(y <= 0.0031308, 12.92 * y, 1.055 * y ** (1 / 2.4) - 0.055))


def table_texture(style: Style, extent_m: tuple[float, float], pixels: int = TEXTURE_PIXELS) -> Floats:
    """Make the texture of a table of (x, y) metres: (N, N, 3) float32 linear colours, rows along y, columns along x."""
    rng = np.random.default_rng([style.seed, 5])
    tint = _floats(style.tint)
    if style.table == "checker":
        return np.asarray(_checker(extent_m, pixels) * tint)
    if style.table == "plain":
        speck = 1 + 0.05 * (_noise(rng, 256, 256, pixels) - 0.5)
        return np.asarray(_floats(linear((0.62, 0.63, 0.64))) * tint * speck[..., None])
    light, dark = (0.80, 0.64, 0.46), (0.60, 0.43, 0.27)
    if style.table == "walnut":
        light, dark = (0.50, 0.34, 0.23), (0.28, 0.17, 0.10)
    return _wood(rng, extent_m, _floats(linear(light)) * tint, _floats(linear(dark)) * tint, pixels)


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float32)


def _noise(rng: np.random.Generator, rows: int, columns: int, pixels: int) -> Floats:
    """Make smooth noise (N, N), 0 to 1, with the given number of bumps down and across."""
    coarse = rng.random((rows + 1, columns + 1), dtype=np.float32)
    size = (pixels, pixels)
    return np.clip(np.asarray(cv2.resize(coarse, size, interpolation=cv2.INTER_CUBIC), dtype=np.float32), 0.0, 1.0)


def _checker(extent_m: tuple[float, float], pixels: int, side_m: float = 0.05) -> Floats:
    middle = (np.arange(pixels) + 0.5) / pixels
    x, y = np.floor(middle * extent_m[0] / side_m), np.floor(middle * extent_m[1] / side_m)
    even = ((x[None, :] + y[:, None]) % 2)[..., None]
    light, dark = _floats(linear((0.82, 0.82, 0.80))), _floats(linear((0.46, 0.48, 0.52)))
    return _floats(np.where(even > 0, light, dark))


def _wood(rng: np.random.Generator, extent_m: tuple[float, float], light: Floats, dark: Floats, n: int) -> Floats:
    """Make planks along x, each with its own tone, rings distorted by low-frequency noise, and fine pores."""
    plank_m = 0.13
    y = (np.arange(n, dtype=np.float32) + 0.5) / n * extent_m[1]
    plank = np.floor(y / plank_m).astype(int)
    count = int(plank.max()) + 1
    tone = rng.uniform(-0.16, 0.16, count).astype(np.float32)[plank][:, None]
    # Shift the noise along x from plank to plank, so that the grain is discontinuous at every joint.
    shift = rng.integers(0, n, count)[plank]
    columns = (np.arange(n)[None, :] + shift[:, None]) % n
    rows = np.arange(n)[:, None]
    bend = _noise(rng, 26, 4, n)[rows, columns]
    within = ((y / plank_m) % 1.0)[:, None]
    rings = 0.5 + 0.5 * np.sin(2 * np.pi * (5.0 * within + 3.5 * bend))
    grain = _noise(rng, 340, 14, n)[rows, columns]
    pores = _noise(rng, 700, 60, n)[rows, columns]
    mix = np.clip(0.30 + 0.30 * rings**2 + 0.35 * (grain - 0.5) + tone, 0.0, 1.0)[..., None]
    colour = light * (1 - mix) + dark * mix
    colour = colour * (1.0 - 0.22 * np.clip(pores - 0.62, 0.0, 1.0) / 0.38)[..., None]
    # Wider than a pixel and soft: a thin sharp line would alias at a distance.
    joint = np.exp(-((np.abs(within - np.round(within)) * plank_m / 0.0016) ** 2))
    return np.asarray(colour * (1.0 - 0.45 * joint[..., None]), dtype=np.float32)
