"""`dataset_warnings`: what is sound and still not what one would wish to train on; it reads the JSON only."""

from __future__ import annotations

from pathlib import Path

from kinema4d_model.data.dataset_folder import DatasetFolder
from kinema4d_model.data.errors import DataError
from kinema4d_model.data.shards import open_index, read_document

__all__ = ["dataset_warnings"]

_CONDITION = {
    "measured": "the condition is drawn from measured joints, for the source has no commands: fingers that stop at an "
    "object give the outcome away",
    "masked": "the condition is cut out of the pictures, for there are no joints or no camera: it shows what happened, "
    "not what was commanded",
}
_SCENE = "every recording counts as a scene of its own, for the source names none: one place may be in two splits"


def dataset_warnings(path: str | Path) -> list[str]:
    """One line for each kind of warning, with how many episodes it is about and the first of them.

    What cannot be read is left to `check_dataset`.
    """
    try:
        dataset = DatasetFolder.open(path)
    except DataError:
        return []
    found: dict[str, list[str]] = {}
    episodes = 0
    for split in dataset.splits:
        for shard in dataset.shards(split):
            try:
                index = open_index(shard)
                documents = [read_document(index, i) for i in range(len(index.episodes))]
            except DataError:
                continue
            for document in documents:
                episodes += 1
                details = document.get("details")
                if not isinstance(details, dict):
                    continue
                key = str(document.get("key"))
                kind = str(details.get("condition", ""))
                if kind in _CONDITION:
                    found.setdefault(_CONDITION[kind], []).append(key)
                if details.get("scene_key") == "episode":
                    found.setdefault(_SCENE, []).append(key)
    return [f"{len(keys)} of {episodes} episodes ({keys[0]} ...): {what}" for what, keys in found.items()]
