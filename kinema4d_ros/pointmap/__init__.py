"""Pointmaps of the robot: the sequence, its normalisation, the wire format, soft masks, degradations."""

from kinema4d_ros.pointmap.sequence import NormalisedPointmap, PointmapSequence, denormalise

__all__ = ["NormalisedPointmap", "PointmapSequence", "denormalise"]
