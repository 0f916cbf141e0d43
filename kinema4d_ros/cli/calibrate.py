"""`kinema4d calibrate`: camera intrinsics and extrinsics, each result with its residual and a verdict.

board        draw a board to print
intrinsics   focal length and distortion from images of a board, in files or collected from a topic
extrinsics   camera pose from a board on the gripper (--link) or at a measured pose (--table)
markerless   camera pose from masks of the robot and a rough guess
recon        alignment of a reconstructed mesh with the robot, with or without picked point pairs
check        test a camera file: offset of the robot in images, against the stated uncertainty
compare      test whether several files agree on the camera's pose, within their uncertainties
page         camera pose by hand: sliders and a live overlay in a browser

Joint positions are a trajectory file (CSV, JSON, NPZ) with one row for each image, in the order of the images' names.
A result with errors is written only with --force; without it the exit code is 2. Exit codes of check: 0 (fits),
2 (moved), 1 (cannot tell); of compare: 0 (agree), 2 (disagree), 1 (unknown). See docs/calibration.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kinema4d_ros.cli.options import add_joint_options

__all__ = ["register", "run"]

PAPER_DPI = 300


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its subcommands to the parser."""
    parser = verbs.add_parser(
        "calibrate",
        help="calibrate the camera's intrinsics and pose",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ways = parser.add_subparsers(dest="way", metavar="WAY", required=True)
    board = _way(ways, "board", "draw a board to print", out="board.png")
    board.add_argument("--dpi", type=int, default=PAPER_DPI, help=f"resolution of the printer (default: {PAPER_DPI})")
    intrinsics = _way(ways, "intrinsics", "focal length and distortion from images of a board", out="camera.yaml")
    intrinsics.add_argument("images", nargs="*", type=Path, help="images, or a folder of them")
    intrinsics.add_argument("--topic", metavar="NAME", help="collect images from this topic, e.g. camera/image_raw")
    intrinsics.add_argument("--count", type=int, default=20, help="images to collect (default: 20)")
    intrinsics.add_argument(
        "--seconds", type=float, default=0.0, help="time limit of the collection (default: 0, none)"
    )
    intrinsics.add_argument(
        "--keep", type=Path, metavar="DIR", help="folder for collected images (default: OUT_images)"
    )
    intrinsics.add_argument(
        "--model", default="plumb_bob", choices=("plumb_bob", "rational_polynomial"), help="distortion model"
    )
    intrinsics.add_argument("--name", default="camera", help="camera name in the file")
    extrinsics = _way(ways, "extrinsics", "the camera's pose from a board", out="extrinsics.yaml")
    extrinsics.add_argument("images", nargs="+", type=Path, help="images, or a folder of them")
    _robot_options(extrinsics)
    place = extrinsics.add_mutually_exclusive_group()
    place.add_argument("--link", default="gripper", help="link that carries the board (default: gripper)")
    place.add_argument(
        "--table", nargs=6, type=float, metavar=("X", "Y", "Z", "R", "P", "Y"),
        help="pose of a fixed board in the base frame, metres and radians",
    )  # fmt: skip
    extrinsics.add_argument(
        "--size-tolerance", type=float, default=0.5, metavar="PERCENT",
        help="with --table, standard deviation of the square size (default: 0.5)",
    )  # fmt: skip
    extrinsics.add_argument(
        "--masks", type=Path, metavar="DIR", help="masks of the robot, one for each image; also reports the IoU"
    )
    _against_option(extrinsics)
    markerless = _way(ways, "markerless", "the camera's pose from masks of the robot", out="extrinsics.yaml")
    markerless.add_argument("masks", nargs="+", type=Path, help="masks (robot white), or a folder of them")
    _robot_options(markerless)
    markerless.add_argument(
        "--guess", type=Path, required=True, metavar="FILE", help="extrinsics within 5 cm and 5 degrees"
    )
    _against_option(markerless)
    recon = _way(ways, "recon", "align a reconstructed mesh with the robot", out="recon.yaml")
    recon.add_argument("mesh", type=Path, help=".stl, .obj, .dae, .ply or .glb")
    recon.add_argument(
        "--pairs", type=Path, metavar="FILE",
        help="YAML with lists `recon` and `base` of picked points (default: search over all orientations)",
    )  # fmt: skip
    recon.add_argument("--similarity", action="store_true", help="estimate the scale too: the mesh's unit is unknown")
    recon.add_argument(
        "--engine", choices=("auto", "own", "open3d"), default="auto",
        help="ICP that refines the pose (default: auto, Open3D's if it is installed and the scale is known)",
    )  # fmt: skip
    _robot_options(recon, camera=False)
    compare = _way(ways, "compare", "test whether several files agree on the camera's pose")
    compare.add_argument("files", nargs="+", type=Path, metavar="FILE", help="camera or extrinsics files, two or more")
    check = _way(
        ways, "check", "test a camera file: draw the robot over an image and measure its offset", out="check.png"
    )
    check.add_argument(
        "image", nargs="+", type=Path, help="images of the robot; several arm poses are more reliable than one"
    )
    check.add_argument(
        "--mask",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="masks of the robot in those images, used instead of their edges",
    )
    _robot_options(check)
    page = _way(ways, "page", "adjust the camera's pose by hand, in a browser on this machine", out="extrinsics.yaml")
    page.add_argument("images", nargs="*", type=Path, help="images of the robot, or a folder of them")
    page.add_argument("--topic", metavar="NAME", help="use a live camera, e.g. camera/image_raw, and joint_states")
    page.add_argument("--masks", type=Path, metavar="DIR", help="masks of the robot, one for each image")
    page.add_argument("--guess", type=Path, metavar="FILE", help="extrinsics to start from (default: the camera's)")
    page.add_argument("--port", type=int, default=8081, help="port of the page (default: 8081; 0: any free port)")
    page.add_argument("--seconds", type=float, default=0.0, help="stop after this time (default: 0, stop with Ctrl-C)")
    _robot_options(page)


def run(arguments: argparse.Namespace) -> int:
    """Run one subcommand of `calibrate`."""
    # Imported here so that other verbs do not load OpenCV, scipy and the readers.
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
        parser.add_argument("--picture", type=Path, metavar="PNG", help="also write an image of the result")
        parser.add_argument("--force", action="store_true", help="write the result even if it fails the quality gate")
    if name != "page":
        parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.set_defaults(run=run)
    return parser


def _against_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against", nargs="+", type=Path, default=[], metavar="FILE",
        help="results of other methods for the same camera; a disagreement is an error",
    )  # fmt: skip


def _robot_options(parser: argparse.ArgumentParser, *, camera: bool = True) -> None:
    parser.add_argument("--robot", default="yam", metavar="NAME|FILE", help="a robot's name or file (default: yam)")
    parser.add_argument("--joints", type=Path, metavar="FILE", help="joint positions, one row for each image")
    add_joint_options(parser)
    if camera:
        parser.add_argument("--camera", type=Path, required=True, metavar="FILE", help="CameraInfo or camera file")
