"""`scene_from_truth`: the lab's true shapes and poses as a fitted scene, for the oracle of evaluations and for tests.

An oracle draft knows what a perfect fit of the image could know. It does not know mass, friction or servos: members are
drawn from the same priors as those of every draft.
"""

from __future__ import annotations

import numpy as np

from kinema4d_ros.generators.draft.scene import Estimate, FittedObject, FittedScene
from kinema4d_ros.lab.picture import LabImage
from kinema4d_ros.lab.simulation import LabState
from kinema4d_ros.physics.model import Room

__all__ = ["scene_from_truth"]


def scene_from_truth(
    state: LabState, image: LabImage | None = None, *, room: Room | None = None, held: tuple[str, ...] = ()
) -> FittedScene:
    """Return the objects of a state under their own names, each with one estimate: shape, size and pose.

    Args:
        state: of the lab.
        image: with segmentation, for the objects' masks; None = empty masks of size (0, 0).
        room: whose table they stand on.
        held: names of objects between the fingers.
    """
    objects = []
    for name, placed in state.objects.items():
        thing = placed.object
        estimate = Estimate(thing.shape, thing.size, placed.base_T_object.copy(), 1.0, getattr(thing, "vertices", None))
        mask = np.zeros((0, 0), dtype=bool) if image is None else image.mask(name)
        objects.append(FittedObject(name, mask, (estimate,), 0.0, "measured", name in held))
    return FittedScene(tuple(objects), (room or Room()).table_z)
