"""Results as files that ordinary viewers open: MP4, PNG, PLY, and folders of pointmaps."""

from kinema4d_ros.media.images import colour_depth, overlay, read_image, strip, write_image
from kinema4d_ros.media.ply import write_ply
from kinema4d_ros.media.store import load_pointmaps, save_pointmaps
from kinema4d_ros.media.video import VideoWriter

__all__ = [
    "VideoWriter",
    "colour_depth",
    "load_pointmaps",
    "overlay",
    "read_image",
    "save_pointmaps",
    "strip",
    "write_image",
    "write_ply",
]
