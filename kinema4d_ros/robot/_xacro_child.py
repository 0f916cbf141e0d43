"""Child process that expands a xacro file; it may only read the robot's own packages.

Run as a script by `urdf.expand_xacro` with the file and the folders it may read; prints one JSON object:
`text` (the URDF), or `unsafe` (the rejected operation) or `error`, with `type`.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The folder of this script has modules with common names, which must not shadow the standard library.
    sys.path.pop(0)

import io
import json
import os
import resource
from importlib import util
from pathlib import Path
from typing import Any

MEMORY_BYTES = 2**30
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REFUSED = (
    *("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.", "socket.", "ctypes."),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.kill"),
    *("shutil.", "urllib.", "ftplib.", "smtplib.", "webbrowser.", "tempfile."),
)


class UnsafeError(PermissionError):
    """Rejected operation of the xacro file."""


class _Watch:
    """Audit hook for every file that Python opens; a rejection is remembered even if the exception is caught."""

    def __init__(self, roots: list[str]) -> None:
        self._real = tuple(os.path.realpath(root) for root in roots)
        # Installed packages may consist of links into a workspace, so their unresolved path is checked.
        prefixes = [p for p in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if p]
        self._named = tuple(os.path.normpath(Path.cwd() / prefix / "share") for prefix in prefixes)
        own = [sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(os.__file__).parent), *sys.path]
        self._code = tuple(os.path.realpath(path) for path in own if path)
        self.refused = ""

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_REFUSED):
            self._refuse(f"{event} {str(arguments)[:200]}")
        if event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        path, mode, flags = os.fsdecode(arguments[0]), arguments[1], arguments[2]
        if (isinstance(flags, int) and flags & _WRITES) or (isinstance(mode, str) and set(mode) & set("wax+")):
            self._refuse(f"to write {path}")
        if not self._may_read(path):
            self._refuse(f"to read {path}")

    def _may_read(self, path: str) -> bool:
        named, real = os.path.normpath(Path.cwd() / path), os.path.realpath(path)
        if any(_inside(named, share) for share in self._named) or any(_inside(real, root) for root in self._real):
            return True
        return real.endswith((".py", ".pyc", ".so")) and any(_inside(real, folder) for folder in self._code)

    def _refuse(self, what: str) -> None:
        self.refused = self.refused or what
        raise UnsafeError(what)


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _screen() -> Any:
    """Load `screen_xml` alone: importing its package would import everything a robot needs."""
    spec = util.spec_from_file_location("kinema4d_ros.robot.xml_screen", Path(__file__).with_name("xml_screen.py"))
    if spec is None or spec.loader is None:
        raise ImportError("xml_screen")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _expand(path: str, roots: list[str]) -> dict[str, str]:
    import xacro

    screen = _screen()
    parse = xacro.parse

    def screened_parse(source: Any, filename: str | None = None) -> Any:
        if source is None and filename is not None:
            file = Path(xacro.root_dir, filename)
            if file.is_file():
                data = file.read_bytes()
                screen.screen_xml(data, filename)
                source = io.BytesIO(data)
        return parse(source, filename)

    # xacro has no hook for included files; `parse` is the only function that opens them.
    xacro.parse = screened_parse
    watch = _Watch(roots)
    sys.addaudithook(watch)
    try:
        return {"text": xacro.process_file(path).documentElement.toxml()}
    except MemoryError:
        return {"error": f"it needs more than {MEMORY_BYTES:,} bytes", "type": "MemoryError"}
    except BaseException as error:  # an expression may raise anything, even SystemExit
        if watch.refused:
            return {"unsafe": f"it tried {watch.refused}"}
        if getattr(getattr(error, "code", None), "name", "") == "URDF_UNSAFE":
            return {"unsafe": str(getattr(error, "what", error))}
        return {"error": str(error), "type": type(error).__name__}
    finally:
        if watch.refused:
            sys.stderr.write(f"refused: {watch.refused}\n")


def _main() -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # xacro itself may print to stdout
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer = json.dumps(_expand(sys.argv[1], sys.argv[2:])).encode()
    while answer:
        answer = answer[os.write(out, answer) :]


if __name__ == "__main__":
    _main()
