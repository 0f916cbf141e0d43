"""Alignment of a reconstruction with the robot description: `base_T_world` and scale.

The initial pose comes from a measured board, picked pairs or a search; ICP refines it if the shapes of the description
are good enough. A description of another robot or of other joint positions is rejected with the measured fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from kinema4d_ros.acquisition.hull import ColouredMesh
from kinema4d_ros.calibration.recon import Reconstruction, align_pairs, align_reconstruction
from kinema4d_ros.calibration.surfaces import Surface, robot_surface, sample_surface
from kinema4d_ros.core.camera import PinholeCamera
from kinema4d_ros.core.errors import CalibrationError
from kinema4d_ros.core.transforms import apply, make, rotation_angle
from kinema4d_ros.robot.model import Robot

__all__ = ["Alignment", "align_mesh", "place_camera", "with_shapes"]

Array = NDArray[np.float64]

NEAR_M = 0.02
"""Points within this distance of the description fit it: descriptions are often boxes and cylinders."""

LEAST_FIT = 0.7
REFINE_M, REFINE_DEG = 0.015, 3.0
"""A refinement that moves a measured pose further than this is discarded."""

_POINTS = 12_000


@dataclass(frozen=True, eq=False)
class Alignment:
    """Result of the alignment: `p_base = base_T_world (scale * p_world)`.

    Attributes:
        base_T_world: (4, 4) float64, metres.
        scale: metres per world unit.
        mm: root mean square distance of the reconstruction's points within 1 cm of the description.
        fit: fraction of the reconstruction within 20 mm of the description.
        covered: fraction of the description within 20 mm of the reconstruction.
        refined: the pose was refined by ICP.
        note: size of the refinement, or the reason for skipping it.
        reconstruction: ICP result, for the contact sheet.
        surface: points of the reconstruction, in its own units.
    """

    base_T_world: Array
    scale: float
    mm: float
    fit: float
    covered: float
    refined: bool
    note: str
    reconstruction: Reconstruction
    surface: Surface

    @property
    def numbers(self) -> dict[str, Any]:
        """Mapping for the stage's JSON file."""
        return {
            "base_T_world": self.base_T_world.tolist(),
            "scale": self.scale,
            "mm": self.mm,
            "fit": self.fit,
            "covered": self.covered,
            "refined": self.refined,
            "note": self.note,
        }


def with_shapes(robot: Robot) -> Robot:
    """Use collision shapes for links without visual ones, since some descriptions have only those."""
    links = tuple(link if link.visuals else replace(link, visuals=link.collisions) for link in robot.links)
    if not any(link.visuals for link in links):
        raise CalibrationError(
            f"robot '{robot.name}' has no shapes", expected="a URDF with at least rough boxes or cylinders"
        )
    return replace(robot, links=links)


def align_mesh(
    mesh: ColouredMesh,
    robot: Robot,
    q: ArrayLike,
    *,
    base_T_world: ArrayLike | None = None,
    scale: float = 1.0,
    pairs: tuple[Array, Array] | None = None,
    similarity: bool = False,
    refine: bool = True,
    engine: str = "auto",
) -> Alignment:
    """Align a reconstruction with a robot that has shapes.

    Args:
        mesh: in world frame and units.
        robot, q: the description and its joint positions (J,) at the time of the images.
        base_T_world, scale: (4, 4) measured initial pose, metres, and metres per world unit; or
        pairs: (N, 3) points in the world and the same points on the robot, metres. Without either the pose is
            searched for.
        similarity: the world unit is unknown.
        refine: refine the pose by ICP.
        engine: whose ICP, one of `recon.ENGINES`.
    """
    surface = sample_surface(mesh.vertices, mesh.faces, _POINTS)
    if base_T_world is not None:
        # Express the initial pose as exact pairs: the corners of the mesh's bounding box.
        low, high = mesh.vertices.min(axis=0), mesh.vertices.max(axis=0)
        p_world = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)]) * (high - low) + low
        pairs = p_world, apply(base_T_world, scale * p_world)
    if pairs is not None:
        found = align_reconstruction(surface, robot, q, *pairs, similarity=similarity, engine=engine)
        start, start_scale = align_pairs(*pairs, similarity=similarity)
    else:
        found = align_reconstruction(surface, robot, q, similarity=similarity, engine=engine)
        start, start_scale = found.base_T_recon, found.scale
    if {"mirrored_model", "ambiguous_place"} & set(found.quality.names):
        found.quality.require("the alignment")
    pose, scale, refined, note = found.base_T_recon, found.scale, True, ""
    moved = float(
        np.linalg.norm(apply(start, start_scale * surface.points) - apply(pose, scale * surface.points), axis=1).max()
    )
    turned = float(np.degrees(rotation_angle(start, pose)))
    note = f"{found.engine.text} moved it by up to {1e3 * moved:.1f} mm, {turned:.2f} degrees"
    if pairs is None:
        note = f"found by a search over all rotations, refined by {found.engine.text}"
    too_far = base_T_world is not None and (moved > REFINE_M or turned > REFINE_DEG)
    if not refine or too_far:
        pose, scale, refined = start, start_scale, False
        note = "as measured" + (f": {note}, more than the error of a measurement" if too_far and refine else "")
    target = robot_surface(robot, q, 4 * _POINTS)
    p = apply(pose, scale * surface.points)
    there, _ = cKDTree(target.points).query(p)
    back, _ = cKDTree(p).query(target.points)
    fit, covered = float((there < NEAR_M).mean()), float((back < NEAR_M).mean())
    near = there[there < 0.01]
    mm = 1e3 * float(np.sqrt((near**2).mean())) if len(near) else float("inf")
    if fit < LEAST_FIT or covered < LEAST_FIT:
        medians = f"{1e3 * np.median(there):.0f} and {1e3 * np.median(back):.0f} mm"
        raise CalibrationError(
            f"the reconstruction does not fit '{robot.name}': {fit:.0%} of it is within 20 mm of the description, "
            f"{covered:.0%} of the description within 20 mm of it (medians {medians})",
            expected=f"at least {LEAST_FIT:.0%} of both",
            hint="check the URDF, the joint positions (--joints) and the board pose (--board-pose) or the pairs",
        )
    shown = replace(found, base_T_recon=pose, scale=scale, distance_m=there)
    return Alignment(pose, scale, mm, fit, covered, refined, note, shown, surface)


def place_camera(camera: PinholeCamera, base_T_world: Array, scale: float) -> PinholeCamera:
    """Transform a camera from world frame and units to the base frame, metres."""
    pose = camera.base_T_camera
    return camera.posed(base_T_world @ make(pose[:3, :3], scale * pose[:3, 3]))
