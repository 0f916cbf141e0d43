"""`kinema4d segment IMAGES --out DIR`: masks of the robot, for `kinema4d calibrate markerless` and `check`.

rendered    the robot rendered from camera and joints; needs --camera and --joints
classical   difference from --background, or from the images' median, refined with GrabCut; needs no weights
sam2        SAM 2; needs --weights and one of --points, --box, --text (with --detector), or --camera and --joints
auto        sam2 with weights; else classical with a background, five or more images or a prompt; else rendered

Joint positions are a trajectory file with one row for each image, in the order of the images' names, or one row for
all. With them the rendered robot is the prompt of the other methods; the camera may be off by a few centimetres.
See docs/segmentation.md.
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
        help="segment the robot in images or a video",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("images", nargs="+", type=Path, help="images of one camera, a folder of them, or one video")
    add(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="output folder: masks/, overlay.png and segmentation.json",
    )
    add("--method", default="auto", choices=("auto", "rendered", "classical", "sam2"), help="(default: auto)")
    add("--robot", default="yam", metavar="NAME|FILE", help="a robot's name or file (default: yam)")
    add("--camera", type=Path, metavar="FILE", help="camera file: intrinsics and pose")
    add("--joints", type=Path, metavar="FILE", help="joint positions")
    add_joint_options(parser)
    add("--background", type=Path, metavar="FILE", help="the scene without the robot")
    add("--margin", type=float, metavar="PX", help="largest offset of the rendered robot (default: 3 %% of the width)")
    add("--points", nargs="+", default=(), metavar="X,Y[,0|1]", help="pixels on the robot, or with ,0 off the robot")
    add("--box", nargs="+", default=(), metavar="L,T,R,B", help="boxes around the robot, pixels")
    add("--text", default="", help="text prompt, such as 'robot arm'")
    add("--frame", type=int, default=0, metavar="I", help="index of the image that the prompts refer to (default: 0)")
    add("--weights", type=Path, metavar="DIR", help="checkpoint folder of SAM 2")
    add("--detector", type=Path, metavar="DIR", help="weights of a grounding detector, for --text")
    add("--device", default="auto", help="torch device (default: auto)")
    add("--every", type=int, default=1, metavar="N", help="use every Nth image (default: 1)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read the images, segment them, and write the masks."""
    # Imported here so that other verbs do not load OpenCV, the renderer and the readers.
    from kinema4d_ros.cli import segment_files

    return segment_files.run(arguments)
