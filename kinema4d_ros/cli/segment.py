"""`kinema4d segment IMAGES --out DIR`: masks of the robot, for `kinema4d calibrate markerless` and `check`.

rendered    the exact robot; needs --camera and --joints
classical   difference from --background, or from the images' own median, cut out with GrabCut; no weights
sam2        SAM 2; needs --weights and one of --points, --box, --text (with --detector), or --camera and --joints
auto        sam2 with weights; else classical with a background, five or more images or a prompt; else rendered

Joint positions are a trajectory file with one row for each image, in the order of the images' names, or one row for
all. With them the rendered robot points the other methods at the real one; the camera may be a few centimetres wrong.
docs/segmentation.md tells more.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kinema4d_ros.cli.options import add_joint_options

__all__ = ["register", "run"]


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "segment",
        help="find the robot's pixels in images or a video",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("images", nargs="+", type=Path, help="images of one camera, a folder of them, or one video")
    add("--out", type=Path, required=True, metavar="DIR", help="masks/, overlay.png and segmentation.json")
    add("--method", default="auto", choices=("auto", "rendered", "classical", "sam2"), help="(default: auto)")
    add("--robot", default="yam", metavar="NAME|FILE", help="a robot's name or file (default: yam)")
    add("--camera", type=Path, metavar="FILE", help="camera file: intrinsics and pose")
    add("--joints", type=Path, metavar="FILE", help="joint positions")
    add_joint_options(parser)
    add("--background", type=Path, metavar="FILE", help="the scene without the robot")
    add("--margin", type=float, metavar="PX", help="how far the rendered robot may be off (default: 3 %% of the width)")
    add("--points", nargs="+", default=(), metavar="X,Y[,0|1]", help="pixels on the robot, or with ,0 beside it")
    add("--box", nargs="+", default=(), metavar="L,T,R,B", help="boxes around the robot, pixels")
    add("--text", default="", help="what to look for, such as 'robot arm'")
    add("--frame", type=int, default=0, metavar="I", help="image that points, boxes and text belong to (default: 0)")
    add("--weights", type=Path, metavar="DIR", help="SAM 2's")
    add("--detector", type=Path, metavar="DIR", help="of a grounding detector, for --text")
    add("--device", default="auto", help="of torch (default: auto)")
    add("--every", type=int, default=1, metavar="N", help="take every Nth image (default: 1)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read, segment, write."""
    # OpenCV, the renderer and the readers are loaded by those who segment.
    from kinema4d_ros.cli import segment_files

    return segment_files.run(arguments)
