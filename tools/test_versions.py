"""Run the unit tests with the oldest and the newest supported packages, with every interpreter of this machine.

oldest   requirements/constraints-noble.txt: numpy 1.26, OpenCV 4.6 (Python 3.10 to 3.12; numpy 1.26 has no 3.13)
newest   whatever pip resolves today from requirements/*.in

Each pair gets a venv in --folder, which is kept. They have neither ROS nor torch, so the tests of `ros/` and of the
model are left out, and every test module that imports what is not there: these are listed. Exit code 1: a test failed;
2: a venv could not be set up.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
OLDEST_UP_TO = "3.12"
CONSTRAINTS = ROOT / "requirements" / "constraints-noble.txt"
RUNTIME = ROOT / "requirements" / "runtime.in"
TESTS = ("pytest", "pytest-timeout", "hypothesis")
MESHES = "dreamscale-i2rt==1.3.6.post1"
PLAIN_OPENCV, CONTRIB_OPENCV = "opencv-python-headless", "opencv-contrib-python-headless"
WITHOUT = ("test/unit/ros", "test/unit/model", "test/unit/test_requirements.py")
FAILED, BROKEN = 1, 2

SHOW = (
    "import sys, numpy, cv2, scipy, numba, mujoco\n"
    "print('python', sys.version.split()[0], 'numpy', numpy.__version__, 'opencv', cv2.__version__, 'scipy', "
    "scipy.__version__, 'numba', numba.__version__, 'mujoco', mujoco.__version__)"
)
IMPORT = (
    "import importlib, pkgutil, sys, kinema4d_ros, kinema4d_ros.core.errors\n"
    "left_out, bad = ('kinema4d_ros.ros', 'kinema4d_ros.kinematics.moveit_child'), []\n"
    "for module in pkgutil.walk_packages(kinema4d_ros.__path__, 'kinema4d_ros.'):\n"
    "    if module.name.startswith(left_out) or module.name.endswith('__main__'):\n"
    "        continue\n"
    "    try:\n"
    "        importlib.import_module(module.name)\n"
    "    except ImportError as error:\n"
    "        if (error.name or '').split('.')[0] not in ('coal', 'ray', 'kinema4d_msgs', 'rclpy', 'torch'):\n"
    "            bad.append(f'{module.name}: {error}')\n"
    "    except kinema4d_ros.core.errors.SetupError:\n"
    "        pass\n"
    "    except Exception as error:\n"
    "        bad.append(f'{module.name}: {type(error).__name__}: {error}')\n"
    "print('imports:', '; '.join(bad) or 'every module')\n"
    "sys.exit(bool(bad))"
)


def interpreters(wanted: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield version and path of each wanted interpreter that runs: on PATH, or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in wanted:
        candidates = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python3")))]
        for candidate in candidates:
            if candidate and run([candidate, "-c", "import ensurepip, venv"], quiet=True) == 0:
                yield version, candidate
                break
        else:
            print(f"-- Python {version}: not on this machine")


def run(command: Sequence[str], *, quiet: bool = False, environment: dict[str, str] | None = None) -> int:
    """Run a command in the checkout and return its exit code."""
    output = subprocess.DEVNULL if quiet else None
    return subprocess.run(
        list(command),
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdout=output,
        stderr=output,
        check=False,
    ).returncode


def set_up(venv: Path, interpreter: str, oldest: bool) -> bool:
    """Create a venv with the packages; return whether that worked."""
    python = venv / "bin" / "python"
    if not python.exists() and run([interpreter, "-m", "venv", str(venv)]):
        return False
    # uv resolves in seconds what takes pip a quarter of an hour with these constraints.
    if run([str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "uv"]):
        return False
    pip = [str(python), "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    constraints = ["-c", str(CONSTRAINTS)] if oldest else ["--upgrade"]
    if run([*pip, *constraints, "-r", str(RUNTIME), *TESTS]):
        return False
    if oldest:
        # Before 4.7 aruco was a contrib module: Ubuntu's package has it, PyPI's plain one has not.
        remove = [str(python), "-m", "uv", "pip", "uninstall", "--quiet", "--python", str(python)]
        if run([*remove, PLAIN_OPENCV]) or run([*pip, *constraints, "--no-deps", "--reinstall", CONTRIB_OPENCV]):
            return False
    return run([*pip, "--no-deps", MESHES]) == 0


def check(python: Path, tests: Sequence[str]) -> bool:
    """Import everything and run the tests; return whether nothing failed."""
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'model'}"}
    if run([str(python), "-c", SHOW], environment=path) or run([str(python), "-c", IMPORT], environment=path):
        return False
    ignored = [f"--ignore={name}" for name in WITHOUT]
    # Modules that need what the venv lacks cannot be collected; they are listed, and the others run.
    options = ["--quick", "-p", "no:cacheprovider", "--continue-on-collection-errors", "-rs", *ignored]
    return run([str(python), "-m", "pytest", *options, *tests], environment=path) == 0


def main() -> int:
    """Set up and test every pair of interpreter and packages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "versions", help="folder of the venvs")
    parser.add_argument("--only", choices=("oldest", "newest"), help="one set of packages")
    parser.add_argument("--python", action="append", choices=VERSIONS, help="one interpreter; may be repeated")
    parser.add_argument("tests", nargs="*", default=["test/unit"], help="tests to run (default: test/unit)")
    arguments = parser.parse_args()
    os.nice(19)
    results: dict[str, int] = {}
    for version, interpreter in interpreters(arguments.python or VERSIONS):
        for packages in ("oldest", "newest"):
            name = f"{packages} with Python {version}"
            if arguments.only not in (None, packages):
                continue
            if packages == "oldest" and version > OLDEST_UP_TO:
                print(f"-- {name}: left out, numpy 1.26 has no wheels for it")
                continue
            print(f"-- {name}", flush=True)
            venv = arguments.folder / f"{packages}-{version}"
            if not set_up(venv, interpreter, packages == "oldest"):
                results[name] = BROKEN
            else:
                results[name] = 0 if check(venv / "bin" / "python", arguments.tests) else FAILED
    words = {0: "passed", FAILED: "failed", BROKEN: "could not be set up"}
    for name, result in results.items():
        print(f"{name}: {words[result]}")
    return max(results.values(), default=BROKEN)


if __name__ == "__main__":
    sys.exit(main())
