"""Which scenes are held out: by the scene's name alone, or so many episodes of a source, always whole scenes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

__all__ = ["held_out", "split_of", "splitter"]


def _place(scene: str) -> float:
    """A number from 0 to 1 that depends on the name only."""
    return int.from_bytes(hashlib.sha256(scene.encode()).digest()[:4], "big") / 2**32


def split_of(scene: str, val_share: float) -> str:
    """ "train" or "val" by the name of a scene: all episodes of one scene fall together, whatever their number."""
    return "val" if _place(scene) < val_share else "train"


def held_out(episodes: Mapping[str, int], wanted: int) -> frozenset[str]:
    """Scenes to hold out so that they have `wanted` episodes together, or as many fewer as whole scenes need.

    Args:
        episodes: how many there are, by scene.
        wanted: how many to hold out; one scene always stays for training.
    """
    chosen: list[str] = []
    left = wanted
    for scene in sorted(episodes, key=lambda name: (_place(name), name)):
        if episodes[scene] <= left and len(chosen) + 1 < len(episodes):
            chosen.append(scene)
            left -= episodes[scene]
    return frozenset(chosen)


def splitter(
    val_share: float, val_episodes: int | None, count: Callable[[], Mapping[str, int]]
) -> Callable[[str], str]:
    """The split by scene: by share, or by a number of episodes, for which `count` is asked once."""
    if val_episodes is None:
        return lambda scene: split_of(scene, val_share)
    chosen = held_out(count(), val_episodes)
    return lambda scene: "val" if scene in chosen else "train"
