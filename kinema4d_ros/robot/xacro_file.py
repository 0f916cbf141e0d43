"""Xacro files expanded to URDF text.

Xacro is a macro language, not data: `${...}` evaluates restricted Python, `$(env X)` reads the
environment and `<xacro:include>` reads any file. Expand only files you trust as you trust a program.
What can be checked is checked: the file, and every file it includes, is screened for DTDs and
entities before an XML parser sees it.
"""

from __future__ import annotations

import contextlib
import io
import threading
from pathlib import Path
from typing import Any
from xml.dom.minidom import Document

import xacro

from kinema4d_ros.errors import ErrorCode, KinemaError, RobotError
from kinema4d_ros.robot.xml_screen import screen_xml

__all__ = ["expand_xacro"]

_LOCK = threading.Lock()
"""xacro keeps its file stack and arguments in module globals."""


def expand_xacro(path: Path) -> str:
    """URDF text of a .xacro file, with its default arguments."""
    messages = io.StringIO()
    with _LOCK, contextlib.redirect_stderr(messages):
        parse = xacro.parse

        def screened_parse(source: Any, filename: str | None = None) -> Document:
            if source is None and filename is not None and Path(xacro.root_dir, filename).is_file():
                data = Path(xacro.root_dir, filename).read_bytes()
                screen_xml(data, filename)
                source = io.BytesIO(data)
            document: Document = parse(source, filename)
            return document

        # xacro offers no hook for included files; `parse` is the one function that opens them.
        xacro.parse = screened_parse
        try:
            text: str = xacro.process_file(str(path)).documentElement.toxml()
        except KinemaError:
            raise
        except Exception as error:  # xacro lets errors of evaluated expressions through as they are
            raise RobotError(
                f"{path} cannot be expanded by xacro: {type(error).__name__}: {error}",
                expected="a xacro file that `xacro FILE` accepts without arguments",
                hint=messages.getvalue().strip()[-300:],
                code=ErrorCode.URDF_MALFORMED,
            ) from error
        finally:
            xacro.parse = parse
    return text
