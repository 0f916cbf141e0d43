"""Manifest of weights: size and sha256 of every file, to detect changed or truncated files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kinema4d_ros.core.errors import FileFormatError
from kinema4d_ros.io.files import read_json, replacing_file

__all__ = ["MANIFEST", "Manifest", "check_manifest", "file_sha256", "read_manifest", "weight_files", "write_manifest"]

MANIFEST = "manifest.json"
BLOCK = 1 << 22


@dataclass(frozen=True)
class Manifest:
    """Mapping of relative path to (bytes, sha256)."""

    files: dict[str, tuple[int, str]]

    @property
    def sha256(self) -> str:
        """Combined hash of all names and hashes, in sorted order."""
        lines = "".join(f"{sha} {name}\n" for name, (_, sha) in sorted(self.files.items()))
        return hashlib.sha256(lines.encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Compute the sha256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write_manifest(folder: Path, names: list[str] | None = None) -> Manifest:
    """Hash files below a folder (the named ones, or all except hidden ones) and write `manifest.json`."""
    if names is None:
        found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        names = [p.as_posix() for p in found if p.name != MANIFEST and not any(q.startswith(".") for q in p.parts)]
    files = {name: ((folder / name).stat().st_size, file_sha256(folder / name)) for name in sorted(names)}
    document = {
        "format": "kinema4d-manifest-1",
        "files": {name: {"bytes": size, "sha256": sha} for name, (size, sha) in files.items()},
    }
    with replacing_file(folder / MANIFEST) as temporary:
        temporary.write_text(json.dumps(document, indent=1) + "\n")
    return Manifest(files)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder."""
    path = folder / MANIFEST
    try:
        document = read_json(path)
    except FileFormatError as error:
        raise FileFormatError(f"{path} is not a manifest: {error.what}", hint=error.hint, code=error.code) from None
    try:
        files = {str(n): (int(e["bytes"]), str(e["sha256"])) for n, e in document["files"].items()}
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path} is not a manifest: {error!r}") from None
    # The manifest is untrusted input: names must stay below the folder.
    outside = [n for n in files if Path(n).is_absolute() or ".." in Path(n).parts]
    if outside:
        raise FileFormatError(f"{path} names files outside its folder: {', '.join(outside)}")
    return Manifest(files)


def check_manifest(folder: Path, *, hashes: bool = True) -> Manifest:
    """Compare the files with the manifest: sizes, and hashes unless disabled (a 14B model takes minutes)."""
    manifest = read_manifest(folder)
    problems = []
    for name, (size, sha) in manifest.files.items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif path.stat().st_size != size:
            problems.append(f"{name} has {path.stat().st_size:,} bytes instead of {size:,}")
        elif hashes and file_sha256(path) != sha:
            problems.append(f"{name} has another sha256 than when it was written")
    if problems:
        raise FileFormatError(
            f"{folder} does not match its manifest: " + "; ".join(problems), hint="fetch or save it again"
        )
    return manifest


def weight_files(folder: Path, parts: Sequence[str]) -> Manifest:
    """List the safetensors files of these parts of a folder with sizes and hashes.

    Hashes come from the folder's manifest after comparing sizes; other files are hashed (14B: minutes).
    """
    known = check_manifest(folder, hashes=False).files if (folder / MANIFEST).is_file() else {}
    found = [path for part in parts for path in sorted((folder / part).glob("*.safetensors"))]
    names = {path.relative_to(folder).as_posix(): path for path in found}
    unknown = [name for name in names if name not in known]
    with ThreadPoolExecutor() as pool:
        hashes = dict(zip(unknown, pool.map(lambda name: file_sha256(names[name]), unknown), strict=True))
    return Manifest({name: known.get(name) or (path.stat().st_size, hashes[name]) for name, path in names.items()})
