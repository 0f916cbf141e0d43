"""Resolution of mesh URIs: `package://`, `file://` and relative paths, never outside their package.

`package://NAME/path` is searched, in this order, in

1. this package's own data folder, when NAME is kinema4d_ros;
2. an installed Python package NAME (found without importing it);
3. `share/NAME` of every prefix in AMENT_PREFIX_PATH;
4. a folder NAME above the URDF.

A relative path, or `file://` with one, starts at the URDF's folder and must stay in the URDF's
package: the nearest folder above it with a package.xml. Without a package.xml it must stay in
the URDF's folder, or in the folder above when the URDF's own is called `urdf`, `robots` or `xacro`,
so that `../meshes` works. An absolute path is accepted only if a `package://` URI could have named
the same file. Symbolic links are followed before the check; a link that leads out of an install
into the source folder of the same package (colcon's --symlink-install) is accepted.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from kinema4d_ros.core.errors import ErrorCode, KinemaError, MeshError
from kinema4d_ros.io.resources import share_directory
from kinema4d_ros.robot.xml_screen import screen_xml

__all__ = ["MeshFile", "package_roots", "resolve_mesh", "urdf_root"]

OWN_PACKAGE = "kinema4d_ros"

_PACKAGE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_FOLDERS_BESIDE_MESHES = {"urdf", "robots", "xacro"}
_INSTALL_HINTS = {"i2rt": "pip install --no-deps dreamscale-i2rt"}


@dataclass(frozen=True)
class MeshFile:
    """Existing mesh file, and the package folder that must contain it and its companion files."""

    path: Path
    root: Path


def resolve_mesh(uri: str, urdf: Path) -> MeshFile:
    """Return the file that a mesh URI of the URDF file `urdf` refers to, or raise a MeshError with the reason."""
    try:
        return _resolve(uri, urdf)
    except (OSError, RuntimeError) as error:  # a name that is too long, or a loop of links
        raise MeshError(
            f"mesh '{uri[:200]}' cannot be looked up: {error}",
            expected="the name of a file",
            code=ErrorCode.MESH_MISSING,
        ) from None


def _resolve(uri: str, urdf: Path) -> MeshFile:
    if not uri.strip() or "\0" in uri:
        raise MeshError(f"mesh URI {uri!r} names no file", expected="package://NAME/path or a relative path")
    scheme = _SCHEME.match(uri)
    if scheme is None:
        return _resolve_path(uri, uri, urdf)
    kind, rest = scheme[1].lower(), uri[scheme.end() :]
    if kind == "package" and rest.startswith("//"):
        return _resolve_package(uri, rest[2:], urdf)
    if kind == "file":
        return _resolve_path(uri, unquote(rest[2:] if rest.startswith("//") else rest), urdf)
    raise MeshError(
        f"mesh URI '{uri}' has the scheme '{kind}'",
        expected="package://, file:// or a relative path",
        hint="download the mesh and refer to it by package://; nothing is fetched from a network here",
        code=ErrorCode.MESH_UNSAFE_PATH,
    )


def package_roots(name: str, urdf: Path | None = None) -> list[Path]:
    """Return the folders of a package on this machine, in search order."""
    roots: list[Path] = []
    if name == OWN_PACKAGE:
        roots.append(share_directory())
    roots += _python_roots(name)
    roots += [share / name for share in _ament_shares() if (share / name).is_dir()]
    if urdf is not None:
        roots += [folder for folder in urdf.resolve().parents if folder.name == name]
    return list(dict.fromkeys(roots))


def urdf_root(urdf: Path) -> Path:
    """Return the folder that must contain the relative mesh paths of a URDF (see the module docstring)."""
    folder = urdf.resolve().parent
    for candidate in (folder, *folder.parents):
        if (candidate / "package.xml").is_file():
            return candidate
    return folder.parent if folder.name in _FOLDERS_BESIDE_MESHES else folder


def _resolve_package(uri: str, rest: str, urdf: Path) -> MeshFile:
    name, _, inside = rest.partition("/")
    if not _PACKAGE_NAME.match(name) or not inside:
        raise MeshError(
            f"mesh URI '{uri}' names no package and path",
            expected="package://NAME/path/to/mesh",
            code=ErrorCode.MESH_UNSAFE_PATH,
        )
    roots = package_roots(name, urdf)
    for root in roots:
        candidate = root / inside
        _require_inside(uri, candidate, root, name)
        if candidate.is_file():
            return MeshFile(candidate, root)
    if roots:
        where = f"looked in {', '.join(map(str, roots))}"
    else:
        where = f"there is no package '{name}': no Python package, no share/{name} in AMENT_PREFIX_PATH"
    raise MeshError(
        f"mesh '{uri}' was not found; {where}",
        expected="an installed package that holds the file",
        hint=_INSTALL_HINTS.get(name, f"install the package '{name}', or source the workspace that has it"),
        code=ErrorCode.MESH_MISSING,
    )


def _resolve_path(uri: str, text: str, urdf: Path) -> MeshFile:
    folder = urdf.resolve().parent
    candidate = folder / text
    root = urdf_root(urdf)
    if Path(text).is_absolute() and not _is_inside(candidate, root):
        root = _root_that_reaches(candidate) or root
    _require_inside(uri, candidate, root)
    if not candidate.is_file():
        raise MeshError(
            f"mesh '{uri}' was not found; looked for {candidate}",
            expected="a file",
            hint="check the path, or keep the meshes in the URDF's package",
            code=ErrorCode.MESH_MISSING,
        )
    return MeshFile(candidate, root)


def _python_roots(name: str) -> Iterator[Path]:
    # A dotted name would import its parent; a folder without __init__ could be any folder on sys.path.
    if not name.isidentifier():
        return
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return
    if spec is not None and spec.origin is not None:
        yield from (Path(location) for location in spec.submodule_search_locations or ())


def _ament_shares() -> list[Path]:
    return [Path(p) / "share" for p in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if p]


def _root_that_reaches(path: Path) -> Path | None:
    """Return the root of the package whose `package://` URI could name an absolute path, if there is one."""
    real = path.resolve()
    for folder in real.parents:
        if any(folder == root.resolve() for root in package_roots(folder.name)):
            return folder
    return share_directory() if real.is_relative_to(share_directory().resolve()) else None


def _is_inside(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())


def _require_inside(uri: str, candidate: Path, root: Path, package: str | None = None) -> None:
    if _is_inside(candidate, root):
        return
    real = candidate.resolve()
    written = Path(os.path.normpath(candidate))
    if package is not None and written.is_relative_to(os.path.normpath(root)) and _source_package(real) == package:
        return
    raise MeshError(
        f"mesh URI '{uri}' leads to {real}, outside its package",
        expected=f"a file inside {root}",
        hint="move the mesh into the package, or name its own package by package://",
        code=ErrorCode.MESH_UNSAFE_PATH,
    )


def _source_package(path: Path) -> str | None:
    """Return the <name> of the nearest package.xml above a path."""
    for folder in path.parents:
        manifest = folder / "package.xml"
        if manifest.is_file():
            try:
                name = screen_xml(manifest.read_bytes(), str(manifest)).findtext("name")
            except KinemaError:
                return None
            return None if name is None else name.strip()
    return None
