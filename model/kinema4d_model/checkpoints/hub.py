"""Weights from the hub: list the files of a preset and their sizes, download with resume, check the sha256."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from kinema4d_model.checkpoints.manifest import Manifest, read_manifest, write_manifest
from kinema4d_model.preset_parts import WeightSource
from kinema4d_ros.core.errors import ErrorCode, FileFormatError, SetupError

__all__ = ["RemoteFile", "fetch", "list_remote"]

REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class RemoteFile:
    """File on the hub; `sha256` is empty for small text files, for which the hub has none."""

    name: str
    bytes: int
    sha256: str = ""


def list_remote(source: WeightSource, *, endpoint: str | None = None) -> tuple[str, list[RemoteFile]]:
    """Return the current commit of the source's revision, and its files with their sizes."""
    hub = _hub()
    _check_source(source)
    with _explained(source):
        info = hub.HfApi(endpoint=endpoint).model_info(source.repo, revision=source.revision, files_metadata=True)
    files = [
        RemoteFile(s.rfilename, int(s.size or 0), s.lfs.sha256 if s.lfs else "")
        for s in info.siblings or []
        if any(fnmatch(s.rfilename, pattern) for pattern in source.files)
    ]
    if not files:
        raise FileFormatError(
            f"{source.repo} at {source.revision} has none of {', '.join(source.files)}",
            expected="the files that the preset names",
            hint="the repository may have changed; check it and correct the preset",
            code=ErrorCode.FILE_MISSING,
        )
    return str(info.sha), sorted(files, key=lambda file: file.name)


def fetch(
    source: WeightSource,
    folder: Path,
    *,
    endpoint: str | None = None,
    say: Callable[[str], object] = lambda line: None,
) -> Path:
    """Download a source's files below `folder`; complete files are skipped, partial ones are resumed.

    Compares the files with the hub's hashes and writes a manifest with sizes and hashes beside them.

    Returns:
        The folder of the files.
    """
    commit, files = list_remote(source, endpoint=endpoint)
    target = folder / source.into
    place = _common(files)
    if _is_complete(target / place, place, files):
        say(f"{source.repo}: {len(files)} files are already present and match their manifest")
        return target / place
    for file in files:
        # The client trusts any file that it once downloaded, even if it was truncated since.
        path = target / file.name
        if path.is_file() and path.stat().st_size != file.bytes:
            path.unlink()
    _check_space(target, files)
    say(f"{source.repo}: {len(files)} files, {sum(f.bytes for f in files) / 1e9:.2f} GB, commit {commit[:12]}")
    with _explained(source):
        _hub().snapshot_download(
            source.repo,
            revision=commit,
            local_dir=target,
            allow_patterns=[file.name for file in files],
            endpoint=endpoint,
        )
    manifest = write_manifest(target / place, [str(PurePosixPath(f.name).relative_to(place)) for f in files])
    _compare(target / place, place, files, manifest)
    return target / place


def _hub():  # type: ignore[no-untyped-def]
    try:
        import huggingface_hub
    except ImportError:
        raise SetupError(
            "the package huggingface-hub is not installed",
            expected="the packages of requirements/model.in",
            hint="make setup TORCH=cpu, or pip install huggingface-hub",
        ) from None
    return huggingface_hub


def _check_source(source: WeightSource) -> None:
    into = PurePosixPath(source.into)
    if not REPO.fullmatch(source.repo) or into.is_absolute() or ".." in into.parts:
        raise FileFormatError(
            f"'{source.repo}' into '{source.into}' cannot be fetched",
            expected="OWNER/NAME and a folder below the model's",
        )


@contextmanager
def _explained(source: WeightSource) -> Iterator[None]:
    """Convert errors of the hub's client to SetupError with a hint."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        raise _unavailable(
            source, "it is gated", "accept its terms on the hub and log in with `hf auth login`"
        ) from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise _unavailable(source, f"there is no such repository or revision {source.revision}", "") from None
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise _unavailable(source, reason, "retry: downloaded data is kept") from None
    except Exception as error:
        # The client's transport raises its own classes, which differ between versions.
        if "http" not in type(error).__module__:
            raise
        raise _unavailable(source, f"{type(error).__name__}: {error}", "retry: downloaded data is kept") from None


def _unavailable(source: WeightSource, reason: str, hint: str) -> SetupError:
    return SetupError(f"{source.repo} cannot be fetched: {reason}", expected="a connection to the hub", hint=hint)


def _common(files: list[RemoteFile]) -> str:
    """Return the common parent folder of all files, where their manifest is stored."""
    parents = [PurePosixPath(file.name).parent.parts for file in files]
    common = []
    for parts in zip(*parents, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return str(PurePosixPath(*common))


def _is_complete(folder: Path, place: str, files: list[RemoteFile]) -> bool:
    try:
        manifest = read_manifest(folder)
        _compare(folder, place, files, manifest)
    except FileFormatError:
        return False
    return True


def _compare(folder: Path, place: str, files: list[RemoteFile], manifest: Manifest) -> None:
    problems = []
    for file in files:
        name = str(PurePosixPath(file.name).relative_to(place))
        size, sha = manifest.files.get(name, (-1, ""))
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif not size == file.bytes == path.stat().st_size:
            problems.append(f"{name} has {path.stat().st_size:,} bytes, the hub's has {file.bytes:,}")
        elif file.sha256 and sha != file.sha256:
            problems.append(f"{name} has another sha256 than the hub's")
    if problems:
        raise FileFormatError(
            f"{folder} does not match the hub: " + "; ".join(problems), hint="remove the named files and fetch again"
        )


def _check_space(target: Path, files: list[RemoteFile]) -> None:
    existing = next(path for path in [target.absolute(), *target.absolute().parents] if path.exists())
    missing = sum(f.bytes for f in files if not (target / f.name).is_file())
    free = shutil.disk_usage(existing).free
    if missing > free:
        raise FileFormatError(
            f"{target} has {free / 1e9:.1f} GB free, the download needs {missing / 1e9:.1f} GB",
            hint="choose another folder with --out",
            code=ErrorCode.FILE_NOT_WRITABLE,
        )
