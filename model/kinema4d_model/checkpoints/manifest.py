"""A manifest beside weights: size and sha256 of every file, so that a changed or truncated one is found."""

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
    """Relative path -> (bytes, sha256)."""

    files: dict[str, tuple[int, str]]

    @property
    def sha256(self) -> str:
        """One hash for all files: of their names and hashes, in order."""
        lines = "".join(f"{sha} {name}\n" for name, (_, sha) in sorted(self.files.items()))
        return hashlib.sha256(lines.encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """sha256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write_manifest(folder: Path, names: list[str] | None = None) -> Manifest:
    """Hash files below a folder (those named, or all but hidden ones) and write `manifest.json`."""
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
    """The manifest of a folder."""
    path = folder / MANIFEST
    try:
        document = read_json(path)
    except FileFormatError as error:
        raise FileFormatError(f"{path} is not a manifest: {error.what}", hint=error.hint, code=error.code) from None
    try:
        files = {str(n): (int(e["bytes"]), str(e["sha256"])) for n, e in document["files"].items()}
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path} is not a manifest: {error!r}") from None
    # Names come from a file that anybody may have written: they must stay below the folder.
    outside = [n for n in files if Path(n).is_absolute() or ".." in Path(n).parts]
    if outside:
        raise FileFormatError(f"{path} names files outside its folder: {', '.join(outside)}")
    return Manifest(files)


def check_manifest(folder: Path, *, hashes: bool = True) -> Manifest:
    """Compare the files with the manifest; sizes always, hashes unless told not to (a 14B model takes minutes)."""
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
            f"{folder} is not what its manifest says: " + "; ".join(problems), hint="fetch or save it again"
        )
    return manifest


def weight_files(folder: Path, parts: Sequence[str]) -> Manifest:
    """The safetensors files of these parts of a folder.

    Hashes are the folder's manifest's where it has them, after sizes were compared; the rest is read (14B: minutes).
    """
    known = check_manifest(folder, hashes=False).files if (folder / MANIFEST).is_file() else {}
    found = [path for part in parts for path in sorted((folder / part).glob("*.safetensors"))]
    names = {path.relative_to(folder).as_posix(): path for path in found}
    unknown = [name for name in names if name not in known]
    with ThreadPoolExecutor() as pool:
        hashes = dict(zip(unknown, pool.map(lambda name: file_sha256(names[name]), unknown), strict=True))
    return Manifest({name: known.get(name) or (path.stat().st_size, hashes[name]) for name, path in names.items()})
