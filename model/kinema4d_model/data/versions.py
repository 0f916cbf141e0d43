"""Versions of the packages that determine the pixels and numbers of an episode."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from kinema4d_ros import __version__

__all__ = ["RENDERER", "versions"]

RENDERER = "numba-1"
"""Version of the rasteriser; increase it when the same robot, joints and camera give different pixels."""


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    found = {"kinema4d_ros": __version__, "renderer": RENDERER}
    for package in ("numpy", "numba", "mujoco", "av"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def versions() -> dict[str, str]:
    """Return the version of each package by name."""
    return dict(_versions())
