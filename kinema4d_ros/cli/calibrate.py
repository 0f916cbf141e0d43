"""`kinema4d calibrate`: where the camera is and how it sees, each result with its residual and a verdict.

board        a board to print
intrinsics   focal length and lens from images of a board, in files or collected from a topic
extrinsics   the camera's pose from a board on the gripper (--link) or at a measured place (--table)
markerless   the camera's pose from masks of the robot and a rough guess
recon        a reconstructed mesh laid onto the robot, from picked pairs or from none
check        is the camera where the file says? How far the robot is off in images, against what uncertainties allow
compare      do several files put the camera in the same place, within their uncertainties?
page         the camera's pose by hand: sliders and a live overlay in a browser

Joint positions are a trajectory file (CSV, JSON, NPZ) with one row for each image, in the order of the images' names.
A result with errors is not written unless --force is given, and the exit code is 2. check ends with 0 (fits), 2 (moved)
or 1 (cannot tell), compare with 0 (agree), 2 (disagree) or 1 (unknown). docs/calibration.md tells more.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kinema4d_ros.cli.options import add_joint_options

__all__ = ["register", "run"]

PAPER_DPI = 300


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its own verbs to the parser."""
    parser = verbs.add_parser(
        "calibrate",
        help="find out where the camera is and how it sees",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ways = parser.add_subparsers(dest="way", metavar="WAY", required=True)
    board = _way(ways, "board", "draw a board to print", out="board.png")
    board.add_argument("--dpi", type=int, default=PAPER_DPI, help=f"of the printer (default: {PAPER_DPI})")
    intrinsics = _way(ways, "intrinsics", "focal length and lens from images of a board", out="camera.yaml")
    intrinsics.add_argument("images", nargs="*", type=Path, help="images, or a folder of them")
    intrinsics.add_argument("--topic", metavar="NAME", help="collect images from this topic, e.g. camera/image_raw")
    intrinsics.add_argument("--count", type=int, default=20, help="images to collect (default: 20)")
    intrinsics.add_argument("--seconds", type=float, default=0.0, help="stop collecting then (default: 0, never)")
    intrinsics.add_argument("--keep", type=Path, metavar="DIR", help="folder of the collected (default: OUT_images)")
    intrinsics.add_argument(
        "--model", default="plumb_bob", choices=("plumb_bob", "rational_polynomial"), help="of the lens"
    )
    intrinsics.add_argument("--name", default="camera", help="of the camera, for the file")
    extrinsics = _way(ways, "extrinsics", "the camera's pose from a board", out="extrinsics.yaml")
    extrinsics.add_argument("images", nargs="+", type=Path, help="images, or a folder of them")
    _robot_options(extrinsics)
    place = extrinsics.add_mutually_exclusive_group()
    place.add_argument("--link", default="gripper", help="link that carries the board (default: gripper)")
    place.add_argument(
        "--table", nargs=6, type=float, metavar=("X", "Y", "Z", "R", "P", "Y"),
        help="the board lies still: its pose in the base frame, metres and radians",
    )  # fmt: skip
    extrinsics.add_argument(
        "--size-tolerance", type=float, default=0.5, metavar="PERCENT",
        help="with --table, how well the size of a square is known, one sigma (default: 0.5)",
    )  # fmt: skip
    extrinsics.add_argument(
        "--masks", type=Path, metavar="DIR", help="masks of the robot, one for each image: the IoU is told too"
    )
    _against_option(extrinsics)
    markerless = _way(ways, "markerless", "the camera's pose from masks of the robot", out="extrinsics.yaml")
    markerless.add_argument("masks", nargs="+", type=Path, help="masks (robot white), or a folder of them")
    _robot_options(markerless)
    markerless.add_argument(
        "--guess", type=Path, required=True, metavar="FILE", help="extrinsics within 5 cm and 5 degrees"
    )
    _against_option(markerless)
    recon = _way(ways, "recon", "lay a reconstructed mesh onto the robot", out="recon.yaml")
    recon.add_argument("mesh", type=Path, help=".stl, .obj, .dae, .ply or .glb")
    recon.add_argument(
        "--pairs", type=Path, metavar="FILE",
        help="YAML with lists `recon` and `base` of picked points (default: searched for, all around)",
    )  # fmt: skip
    recon.add_argument("--similarity", action="store_true", help="the mesh's unit is unknown")
    _robot_options(recon, camera=False)
    compare = _way(ways, "compare", "do several files put the camera in the same place?")
    compare.add_argument("files", nargs="+", type=Path, metavar="FILE", help="camera or extrinsics files, two or more")
    check = _way(ways, "check", "is the camera where the file says? Draws the robot over an image", out="check.png")
    check.add_argument("image", nargs="+", type=Path, help="images of the robot; several arm poses tell more than one")
    check.add_argument(
        "--mask", nargs="+", type=Path, metavar="FILE", help="of the robot in those images, instead of their edges"
    )
    _robot_options(check)
    page = _way(ways, "page", "place the camera by hand, in a browser on this machine", out="extrinsics.yaml")
    page.add_argument("images", nargs="*", type=Path, help="images of the robot, or a folder of them")
    page.add_argument("--topic", metavar="NAME", help="a live camera instead, e.g. camera/image_raw, and joint_states")
    page.add_argument("--masks", type=Path, metavar="DIR", help="masks of the robot, one for each image")
    page.add_argument("--guess", type=Path, metavar="FILE", help="extrinsics to start from (default: the camera's)")
    page.add_argument("--port", type=int, default=8081, help="of the page (default: 8081; 0: any free one)")
    page.add_argument("--seconds", type=float, default=0.0, help="end then (default: 0, with Ctrl-C)")
    _robot_options(page)


def run(arguments: argparse.Namespace) -> int:
    """Run one way of `calibrate`."""
    # OpenCV, scipy and the readers are loaded by those who calibrate.
    from kinema4d_ros.cli import calibrate_ways

    return int(getattr(calibrate_ways, arguments.way)(arguments))


def _way(
    ways: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, *, out: str = ""
) -> argparse.ArgumentParser:
    parser = ways.add_parser(name, help=text, description=text)
    if name in ("board", "intrinsics", "extrinsics"):
        parser.add_argument(
            "--board", required=True, metavar="SPEC",
            help="charuco:COLSxROWS:SQUARE_M:MARKER_M, chessboard:COLSxROWS:SQUARE_M or apriltag:ID:SIDE_M",
        )  # fmt: skip
    if out:
        parser.add_argument("--out", type=Path, default=Path(out), metavar="FILE", help=f"result (default: {out})")
    if name not in ("board", "check", "compare", "page"):
        parser.add_argument("--picture", type=Path, metavar="PNG", help="also draw the result")
        parser.add_argument("--force", action="store_true", help="write a result that the quality gate refuses")
    if name != "page":
        parser.add_argument("--json", action="store_true", help="print numbers for a program")
    parser.set_defaults(run=run)
    return parser


def _against_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against", nargs="+", type=Path, default=[], metavar="FILE",
        help="results of other ways for the same camera: a disagreement is an error",
    )  # fmt: skip


def _robot_options(parser: argparse.ArgumentParser, *, camera: bool = True) -> None:
    parser.add_argument("--robot", default="yam", metavar="NAME|FILE", help="a robot's name or file (default: yam)")
    parser.add_argument("--joints", type=Path, metavar="FILE", help="joint positions, one row for each image")
    add_joint_options(parser)
    if camera:
        parser.add_argument("--camera", type=Path, required=True, metavar="FILE", help="CameraInfo or camera file")
