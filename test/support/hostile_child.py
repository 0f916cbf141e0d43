"""Attacks in a child process, monitored with inotify: `python -m support.hostile_child FOLDER [NAME...]`.

Prints one JSON line per attack: error code, whether the payload ran, whether the secret was opened (inotify also sees
opens by C libraries and child processes), which programs were started, and whether the secret is in the result.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import time
from pathlib import Path

IN_OPEN, IN_ACCESS = 0x20, 0x1


class Watch:
    """Counts how often a file was opened or read by any process."""

    def __init__(self, path: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK)
        if self._fd < 0 or self._libc.inotify_add_watch(self._fd, os.fsencode(path), IN_OPEN | IN_ACCESS) < 0:
            raise OSError(ctypes.get_errno(), "inotify")

    def seen(self) -> bool:
        try:
            return bool(os.read(self._fd, 4096))
        except BlockingIOError:
            return False


def main(folder: Path, names: list[str], out: int) -> None:
    from support.hostile_files import ATTACKS, CONTROLS, Place, secret_bytes

    from kinema4d_ros.core.errors import KinemaError
    from kinema4d_ros.robot import urdf as xacro_file

    xacro_file.TIME_LIMIT_S = 15.0
    started: list[str] = []

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        # Our own xacro expansion is expected.
        if event in ("os.system", "os.exec", "os.posix_spawn", "os.spawn"):
            started.append(f"{event} {arguments}")
        if event == "subprocess.Popen" and "_xacro_child" not in str(arguments):
            started.append(str(arguments[:2]))

    sys.addaudithook(audit)
    for attack in (*ATTACKS, *CONTROLS):
        if names and attack.name not in names:
            continue
        own = folder / re.sub(r"\W+", "_", attack.name)
        (own / "outside").mkdir(parents=True)
        (own / "inside").mkdir()
        secret, marker = own / "outside" / "secret.stl", own / "ran"
        secret.write_bytes(secret_bytes())
        path = attack.make(Place(own / "inside", marker, secret))
        watch = Watch(secret)
        before, begun = len(started), time.monotonic()
        code, text = "", ""
        try:
            text = repr(attack.read(path))
        except KinemaError as error:
            code, text = error.code.name, str(error)
        except BaseException as error:
            code, text = f"{type(error).__name__}", str(error)
        report = {
            "name": attack.name,
            "code": code,
            "text": text[:300],
            "ran": marker.exists() or (own / "inside" / "ran").exists() or (own.parent / "ran").exists(),
            "opened": watch.seen(),
            "started": started[before:],
            "seconds": time.monotonic() - begun,
        }
        os.write(out, json.dumps(report).encode() + b"\n")


if __name__ == "__main__":
    _out = os.dup(1)
    os.dup2(2, 1)
    main(Path(sys.argv[1]), sys.argv[2:], _out)
