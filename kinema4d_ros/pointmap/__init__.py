"""Pointmaps of the robot: the sequence, its normalisation, the wire format, degradations."""

from kinema4d_ros.pointmap.grip import GripTrack
from kinema4d_ros.pointmap.sequence import NormalisedPointmap, PointmapSequence, denormalise
from kinema4d_ros.pointmap.wire import WireFrames, XyzImage, decode_frames, decode_xyz, encode_frames, encode_xyz

__all__ = [
    "GripTrack",
    "NormalisedPointmap",
    "PointmapSequence",
    "WireFrames",
    "XyzImage",
    "decode_frames",
    "decode_xyz",
    "denormalise",
    "encode_frames",
    "encode_xyz",
]
