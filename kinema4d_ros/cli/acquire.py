"""`kinema4d acquire VIDEO... --urdf FILE --out DIR`: a robot's meshes and URDF from orbit videos.

video -> 20 sharp frames -> camera poses -> masks -> mesh -> aligned -> cut into links -> a URDF for Robot.load

Each stage is saved in DIR with a contact sheet. A second run resumes after the last finished stage; a changed option
repeats only the stages that depend on it. docs/acquire.md shows an example.

  kinema4d acquire orbit.mp4 --urdf arm.urdf --joints at.csv --camera camera.yaml \\
      --board charuco:14x10:0.04:0.03:5X5_100 --board-pose 0.09 0.22 0 3.14159 0 0 --segmenter classical --out DIR
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kinema4d_ros.cli.options import add_joint_options, joint_options
from kinema4d_ros.core.errors import ErrorCode, KinemaError

if TYPE_CHECKING:
    from kinema4d_ros.acquisition.options import Acquisition
    from kinema4d_ros.core.camera import PinholeCamera
    from kinema4d_ros.segmentation.protocol import RobotSegmenter

__all__ = ["register", "run"]

Bars = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "acquire",
        help="reconstruct a robot's meshes and URDF from orbit videos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "videos", nargs="+", type=Path, metavar="VIDEO", help="video or folder of images; one per joint configuration"
    )
    parser.add_argument(
        "--urdf",
        required=True,
        metavar="FILE|NAME",
        help="description with the joints and at least boxes as link shapes",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="output folder: the stages, and the result in DIR/robot"
    )
    parser.add_argument(
        "--joints", type=Path, metavar="FILE", help="joint positions, one row per video (default: home)"
    )
    add_joint_options(parser)
    parser.add_argument("--views", type=int, default=20, metavar="N", help="frames taken from each video (default: 20)")
    parser.add_argument("--max-blur", type=float, metavar="PX", help="discard frames with more blur (default: 2.5)")
    poses = parser.add_argument_group("camera poses, one of")
    poses.add_argument("--board", metavar="SPEC", help="board in view, charuco:COLSxROWS:SQUARE_M:MARKER_M")
    poses.add_argument("--poses", type=Path, metavar="DIR|FILE", help="COLMAP text files, or a transforms .json")
    parser.add_argument("--camera", type=Path, metavar="FILE", help="intrinsics for --board: CameraInfo or camera file")
    masks = parser.add_argument_group("masks, one of")
    masks.add_argument("--masks", type=Path, metavar="DIR", help="PNG masks named as in DIR/1_frames, robot white")
    masks.add_argument("--segmenter", choices=("classical", "sam2"), help="segmenter of the robot")
    masks.add_argument(
        "--rounds", type=int, default=2, metavar="N", help="segmentation rounds after the first one (default: 2)"
    )
    masks.add_argument("--weights", type=Path, metavar="DIR", help="folder with the checkpoint of sam2")
    masks.add_argument(
        "--text", default="", metavar="WORDS",
        help="text prompt for sam2 (default: the robot rendered from the URDF); needs --detector",
    )  # fmt: skip
    masks.add_argument("--detector", type=Path, metavar="DIR", help="detector for --text: Grounding DINO or OWLv2")
    mesh = parser.add_argument_group("mesh")
    mesh.add_argument("--voxel", type=float, default=0.002, metavar="M", help="voxel size (default: 0.002)")
    mesh.add_argument(
        "--misses",
        type=int,
        metavar="N",
        help="masks that may miss a point of the robot (default: 1 with --segmenter, else 0)",
    )
    mesh.add_argument("--no-floor", action="store_true", help="the robot reaches below the board")
    mesh.add_argument("--depth", type=Path, metavar="DIR", help="16-bit depth PNGs (0.1 mm) named as in DIR/1_frames")
    mesh.add_argument(
        "--mesher", choices=("hull", "open3d"), default="hull",
        help="visual hull, refined by --depth; or only the surfaces in --depth, fused by Open3D (default: hull)",
    )  # fmt: skip
    mesh.add_argument(
        "--triangles", type=int, metavar="N", help="reduce each link to about N triangles, with Open3D (default: all)"
    )
    mesh.add_argument("--command", metavar="TEXT", help="external back-end: a command with {images}, {masks} and {out}")
    mesh.add_argument("--cwd", type=Path, metavar="DIR", help="working directory of --command")
    mesh.add_argument("--timeout", type=float, default=3600.0, metavar="S", help="timeout of --command (default: 3600)")
    place = parser.add_argument_group("pose of the robot's base, one of; with --command both")
    place.add_argument(
        "--board-pose", nargs=6, type=float, metavar=("X", "Y", "Z", "R", "P", "Y"),
        help="pose of the board (or of the pose file's world) in the base frame, metres and radians",
    )  # fmt: skip
    place.add_argument("--pairs", type=Path, metavar="FILE", help="YAML with lists `recon` and `base` of points")
    parser.add_argument(
        "--similarity", action="store_true", help="estimate the scale too: poses (need --pairs) or mesh have no unit"
    )
    parser.add_argument(
        "--engine", choices=("auto", "own", "open3d"), default="auto",
        help="ICP that refines the alignment (default: auto, Open3D's if it is installed and the scale is known)",
    )  # fmt: skip
    parser.add_argument("--no-refine", action="store_true", help="do not refine the alignment with closest points")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, without progress bars")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Acquire the robot and print how well it covers the images."""
    from kinema4d_ros.acquisition.acquire import acquire

    job = _job(arguments)
    found = acquire(job)
    report = found.report
    if arguments.json:
        print(json.dumps({"urdf": str(found.urdf), "made": list(found.made), **report}))
        return 0
    for note in report["notes"]:
        print(note)
    print(f"{len(report['links'])} links, {sum(report['links'].values())} triangles")
    print(f"alignment {report['alignment']['mm']:.1f} mm; {report['alignment']['note']}")
    print(f"IoU in the views: mean {report['iou_mean']:.4f}, lowest {report['iou_least']:.4f}")
    print(found.urdf)
    return 0


def _job(arguments: argparse.Namespace) -> Acquisition:
    """Build the job from the options; reads the files they name."""
    import numpy as np

    from kinema4d_ros.acquisition.backends import ExternalCommand
    from kinema4d_ros.acquisition.frames import MAX_BLUR_PX
    from kinema4d_ros.acquisition.options import Acquisition
    from kinema4d_ros.calibration.boards import parse_board
    from kinema4d_ros.calibration.inputs import read_joints, read_pairs
    from kinema4d_ros.core.transforms import from_rpy
    from kinema4d_ros.robot import Robot

    robot = Robot.load(arguments.urdf)
    videos = tuple(arguments.videos)
    if arguments.joints is None:
        q = np.tile(robot.home_position(), (len(videos), 1))
    else:
        q = read_joints(arguments.joints, robot, len(videos), **joint_options(arguments))
    external = None
    if arguments.command is not None:
        external = ExternalCommand(arguments.command, arguments.timeout, arguments.cwd)
    camera = None if arguments.camera is None else _camera(arguments.camera)
    first, again = _segmenters(arguments, 960 if camera is None else camera.width)
    # About one segmenter mask in twenty has an error; masks from --masks are taken as correct.
    misses = arguments.misses if arguments.misses is not None else int(first is not None)
    pose = arguments.board_pose
    return Acquisition(
        sources=videos,
        robot=robot,
        q=q,
        out=arguments.out,
        camera=camera,
        board=None if arguments.board is None else parse_board(arguments.board),
        poses=arguments.poses,
        masks=arguments.masks,
        segmenter=first,
        again=again,
        rounds=arguments.rounds,
        text=arguments.text,
        segmenter_options=" ".join(str(part) for part in (arguments.weights, arguments.detector) if part),
        depth=arguments.depth,
        base_T_world=None if pose is None else from_rpy(pose[3:], pose[:3]),
        pairs=None if arguments.pairs is None else read_pairs(arguments.pairs),
        similarity=arguments.similarity,
        external=external,
        mesher=arguments.mesher,
        triangles=arguments.triangles,
        engine=arguments.engine,
        views=arguments.views,
        max_blur_px=MAX_BLUR_PX if arguments.max_blur is None else arguments.max_blur,
        voxel_m=arguments.voxel,
        misses=misses,
        floor=not arguments.no_floor,
        refine=not arguments.no_refine,
        bars=_bars(arguments.json),
        say=(lambda line: None) if arguments.json else (lambda line: print(line, flush=True)),
    )


def _segmenters(arguments: argparse.Namespace, width: int) -> tuple[RobotSegmenter | None, RobotSegmenter | None]:
    """Make the segmenter of the first round and that of later rounds, prompted with the consensus of the masks."""
    from kinema4d_ros.segmentation.protocol import make_segmenter

    given = [f"--{name}" for name in ("weights", "text", "detector") if getattr(arguments, name)]
    if arguments.segmenter != "sam2" and given:
        raise _bad(f"{' and '.join(given)} without --segmenter sam2", "--segmenter sam2, or none of these options")
    if arguments.segmenter is None:
        return None, None
    if arguments.segmenter == "sam2":
        if arguments.weights is None:
            raise _bad("SAM 2 needs --weights", "a folder with its checkpoint", "--segmenter classical needs none")
        if bool(arguments.text) != bool(arguments.detector):
            raise _bad("only one of --text and --detector was given", "both or neither")
        first = make_segmenter("sam2", weights=arguments.weights, detector=arguments.detector)
        return first, first
    # The rendered robot may be off by 3 % of the width; the consensus of the masks is closer.
    return make_segmenter("classical"), make_segmenter("classical", margin_px=max(3.0, 0.006 * width))


def _bad(what: str, expected: str, hint: str = "") -> KinemaError:
    return KinemaError(what, expected=expected, hint=hint, code=ErrorCode.ARGUMENT_INVALID)


def _camera(path: Path) -> PinholeCamera:
    """Read the intrinsics from a CameraInfo file or a camera file."""
    import numpy as np

    from kinema4d_ros.calibration import read_camera, read_camera_info
    from kinema4d_ros.io.files import read_yaml

    return read_camera(path) if "intrinsics" in read_yaml(path) else read_camera_info(path).camera(np.eye(4))


def _bars(quiet: bool) -> Bars:
    """Make a factory of progress bars, one per stage."""
    from tqdm import tqdm

    @contextmanager
    def bar(name: str) -> Iterator[Callable[[int, int], None]]:
        with tqdm(total=1, desc=name, disable=quiet, leave=False) as shown:

            def advance(done: int, total: int) -> None:
                shown.total = total
                shown.update(done - shown.n)

            yield advance

    return bar
