"""Xacro files expanded to URDF text, in a process that can read the robot's packages and do nothing else.

Xacro is a macro language, not data: `${...}` evaluates Python, `$(env X)` reads the environment, includes and
`load_yaml` read files. So it runs apart, with bounds on time and memory, and every file it opens must lie in the
URDF's own package (see `packages`) or in an installed one that `$(find NAME)` leads to; each XML file is screened for
DTDs and entities before a parser sees it. This keeps honest files working and stops careless and hostile ones; it is
no sandbox against someone who knows a hole in Python's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from kinema4d_ros.core.errors import ErrorCode, RobotError
from kinema4d_ros.io.resources import share_directory
from kinema4d_ros.robot.packages import urdf_root
from kinema4d_ros.robot.xml_screen import MAX_XML_BYTES

__all__ = ["TIME_LIMIT_S", "expand_xacro"]

TIME_LIMIT_S = 20.0
"""The largest robots expand in a second or two."""

_CHILD = Path(__file__).with_name("_xacro_child.py")


def expand_xacro(path: Path) -> str:
    """URDF text of a .xacro file, with its default arguments."""
    roots = [str(urdf_root(path)), str(share_directory())]
    command = [sys.executable, "-B", str(_CHILD), str(path.absolute()), *roots]
    package_parent = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join(p for p in (os.environ.get("PYTHONPATH", ""), package_parent) if p)
    try:
        # Not in the working directory: a module lying about there must not become part of this.
        done = subprocess.run(  # noqa: S603 - our own script
            command, capture_output=True, timeout=TIME_LIMIT_S, cwd=sys.prefix, env={**os.environ, "PYTHONPATH": search}
        )
    except subprocess.TimeoutExpired:
        raise _refuse(path, f"it takes longer than {TIME_LIMIT_S:g} s", code=ErrorCode.URDF_UNSAFE) from None
    said = done.stderr.decode(errors="replace").strip()[-300:]
    if len(done.stdout) > MAX_XML_BYTES:
        raise _refuse(path, f"it becomes {len(done.stdout):,} bytes", code=ErrorCode.URDF_UNSAFE)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise _refuse(path, f"the expansion ended with {done.returncode}", said) from None
    if "unsafe" in answer:
        raise RobotError(
            f"{path} is refused: {answer['unsafe']}",
            expected=f"a xacro file that reads nothing outside {roots[0]} and installed packages",
            hint="keep what it includes in its package",
            code=ErrorCode.URDF_UNSAFE,
        )
    if "error" in answer:
        raise _refuse(path, f"{answer['type']}: {answer['error']}", said)
    return str(answer["text"])


def _refuse(path: Path, why: str, hint: str = "", code: ErrorCode = ErrorCode.URDF_MALFORMED) -> RobotError:
    return RobotError(
        f"{path} cannot be expanded by xacro: {why}",
        expected="a xacro file that `xacro FILE` accepts without arguments",
        hint=hint,
        code=code,
    )
