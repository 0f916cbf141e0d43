"""What made an episode: versions of the packages that decide its pixels and numbers."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from kinema4d_ros import __version__

__all__ = ["RENDERER", "versions"]

RENDERER = "numba-1"
"""Changes when our rasteriser would draw other pixels for the same robot, joints and camera."""


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
    """Version by package."""
    return dict(_versions())
