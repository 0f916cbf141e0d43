"""`kinema4d fetch-weights`: download a preset's weights from the hub, resume, and verify them.

An interrupted download is resumed. A manifest with sha256 hashes is written and compared with the hub's. Then the
folder is checked as `generate` checks it: names and shapes of all tensors, variant, LoRA, flow shift.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kinema4d_ros.core.errors import ErrorCode, KinemaError, SetupError

__all__ = ["register", "run"]


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the parser."""
    parser = verbs.add_parser(
        "fetch-weights",
        help="download a preset's weights",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--preset", default="wan14b_pm", metavar="NAME|FILE", help="preset of the model (default: wan14b_pm)")
    add(
        "--role",
        action="append",
        choices=("base", "act", "pm", "init", "bundle"),
        help="only these sources, may be repeated (default: all that the preset needs to run)",
    )
    add("--out", type=Path, metavar="DIR", help="the model's folder (default: the folder that `generate` reads)")
    add("--list", action="store_true", help="print files and sizes, download nothing")
    add(
        "--verify",
        "--check",
        dest="check",
        action="store_true",
        help="only check the local files: first names, shapes, sizes and configurations, then every sha256",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fetch, list or check; exit code 0 when everything is present."""
    try:
        from kinema4d_model.checkpoints.hub import fetch, list_remote
        from kinema4d_model.checkpoints.loading import check_bundle, checkpoint_folder
        from kinema4d_model.checkpoints.manifest import MANIFEST, check_manifest
        from kinema4d_model.preset import load_preset
    except ImportError as error:
        raise SetupError(
            f"the learned generator's packages are not installed ({error.name})",
            expected="torch and the packages of requirements/model.in",
            hint="make setup TORCH=cpu or TORCH=cuda",
        ) from None

    preset = load_preset(arguments.preset)
    folder = checkpoint_folder(preset, arguments.out or "")

    def check() -> int:
        said = check_bundle(preset, folder).describe()
        print(f"{folder}: fits preset '{preset.name}': " + "; ".join(f"{name} {text}" for name, text in said.items()))
        return 0

    if arguments.check:
        # Headers first: a folder that does not fit is refused in seconds, before files are read for their sha256.
        if not arguments.role:
            check()
        manifests = sorted(folder.rglob(MANIFEST)) if folder.is_dir() else []
        for path in manifests:
            sizes = [size for size, _ in check_manifest(path.parent).files.values()]
            print(f"{path.parent}: {len(sizes)} files, {sum(sizes) / 1e9:.2f} GB, matches the manifest")
        if not manifests:
            print(f"{folder}: nothing here has a manifest, so no sha256 is known to compare with")
        return 0 if manifests or not arguments.role else 1

    roles = arguments.role or ("base", preset.robot.variant, "bundle")
    sources = [source for source in preset.weights if source.role in roles]
    if not sources:
        known = ", ".join(source.role for source in preset.weights) or "none"
        raise KinemaError(
            f"preset '{preset.name}' has no weights to fetch for {', '.join(roles)}",
            expected=f"one of its roles: {known}",
            code=ErrorCode.ARGUMENT_INVALID,
        )
    for source in sources:
        if arguments.list:
            commit, files = list_remote(source)
            print(f"{source.role}: {source.repo} at {commit[:12]} -> {folder / source.into}")
            for file in files:
                print(f"  {file.bytes / 1e9:9.3f} GB  {file.name}")
            print(f"  {sum(file.bytes for file in files) / 1e9:9.3f} GB  together")
        else:
            print(f"{source.role}: {fetch(source, folder, say=print)}")
    # With --role the folder may be incomplete, so it is not checked as a whole.
    return 0 if arguments.list or arguments.role else check()
