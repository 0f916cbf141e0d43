"""Set up `.venv`: packages from the lock file, torch, the messages, this package.

Each step stores a hash of its inputs, so a second run takes a fraction of a second, a changed message
rebuilds only the messages, and an interrupted run resumes at its step. Standard library only, and no syntax
newer than Python 3.7, so that an old Python can report that it is too old.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch==2.13.0"
STAND_INS = ("tf2_msgs", "object_recognition_msgs", "moveit_msgs", "control_msgs")  # in dependency order
SUPPORTED = ((3, 10), (3, 13))
# A sourced ROS distribution, another Python or another library path must not leak into the venv.
FOREIGN = (
    "AMENT_PREFIX_PATH",
    "CMAKE_PREFIX_PATH",
    "COLCON_PREFIX_PATH",
    "LD_LIBRARY_PATH",
    "PYTHONHOME",
    "PYTHONPATH",
)


def clean_environment():
    """Return the environment without variables that would mix a ROS distribution into the venv."""
    environment = {k: v for k, v in os.environ.items() if k not in FOREIGN}
    environment["PYTHONWARNINGS"] = "ignore"
    environment["SAM2_BUILD_CUDA"] = "0"  # its only kernel fills holes in masks, which we do without CUDA
    return environment


def missing_system_packages():
    """List missing system software that pip cannot install, as (name, Debian package)."""
    missing = []
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        missing.append(("the venv module", "python3-venv"))
    if not (shutil.which("c++") or shutil.which("g++") or shutil.which("clang++") or os.environ.get("CXX")):
        missing.append(("a C++ compiler", "g++"))
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        missing.append(("the Python headers", "python3-dev"))
    return missing


def check_machine():
    """Exit with one line that names missing software and the command that installs it."""
    low, high = SUPPORTED
    if not low <= sys.version_info[:2] <= high:
        sys.exit(
            "error: Python {}.{} found, {}.{} to {}.{} needed: make PYTHON=python3.11 ...".format(
                *sys.version_info[:2], *low, *high
            )
        )
    missing = missing_system_packages()
    if missing:
        names = ", ".join(what for what, _ in missing)
        packages = " ".join(package for _, package in missing)
        sys.exit(f"error: missing {names}: sudo apt-get install {packages}")


def digest(*parts):
    """Hash strings and files (folders: all files below them)."""
    h = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            files = [part] if part.is_file() else sorted(p for p in part.rglob("*") if p.is_file())
            for path in files:
                h.update(str(path.relative_to(ROOT)).encode())
                h.update(path.read_bytes())
        else:
            h.update(str(part).encode())
    return h.hexdigest()


class Venv:
    """A virtual environment with the stamps (input hashes) of its set-up steps."""

    def __init__(self, path):
        self.path = path
        self.python = path / "bin" / "python"
        self.stamps = path / "kinema4d-stamps.json"

    def create(self):
        """Create the venv unless it exists with this Python version."""
        if self.python.exists():
            found = subprocess.run(
                [str(self.python), "-c", "import sys; print(sys.version_info[:2])"],
                stdout=subprocess.PIPE,
                text=True,
                env=clean_environment(),
                check=False,
            )
            if found.stdout.strip() == str(sys.version_info[:2]):
                return
            print(f"{self.path} has another Python version: creating it again")
            shutil.rmtree(str(self.path))
        self.run([sys.executable, "-m", "venv", str(self.path)])

    def read(self):
        """Read the stamps by step; empty when they cannot be read."""
        try:
            return json.loads(self.stamps.read_text())
        except (OSError, ValueError):
            return {}

    def step(self, name, key, action):
        """Run the action unless its stamp is current."""
        if self.read().get(name) == key:
            return
        print(f"-- {name}", flush=True)
        action()
        stamps = self.read()
        stamps[name] = key
        temporary = self.stamps.with_suffix(".tmp")
        temporary.write_text(json.dumps(stamps, indent=1))
        temporary.replace(self.stamps)

    def pip_command(self):
        """Return the start of a pip command line."""
        return [str(self.python), "-m", "pip", "--disable-pip-version-check"]

    def install(self, *arguments):
        """Run `pip install`; exit on failure."""
        self.run([*self.pip_command(), "install", "--quiet", *arguments])

    def run(self, command):
        """Run a command in the checkout; exit on failure."""
        code = subprocess.run(command, cwd=str(ROOT), env=clean_environment(), check=False).returncode
        if code:
            sys.exit(f"error: set-up stopped (exit code {code}) in: {' '.join(map(str, command))}")


def torch_needs_cuda(venv):
    """Return whether the torch that pip would choose depends on the CUDA libraries."""
    report = subprocess.run(
        [
            *venv.pip_command(),
            "install",
            "--quiet",
            "--dry-run",
            "--no-deps",
            "--ignore-installed",
            "--report",
            "-",
            TORCH,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=clean_environment(),
        check=False,
    )
    try:
        wheel = json.loads(report.stdout)["install"][0]["metadata"]
    except (ValueError, KeyError, IndexError):
        return True
    return any(r.startswith(("nvidia-", "cuda-")) for r in wheel.get("requires_dist", []))


def install_torch(venv, flavour):
    """Install torch: the CPU build unless `flavour` is "cuda"; pip's default where that is a CPU build."""
    if flavour == "none":
        return
    # A CPU build satisfies the same version number, so without this a later TORCH=cuda would change nothing.
    venv.run([*venv.pip_command(), "uninstall", "--quiet", "--yes", "torch"])
    if flavour == "cuda" or not torch_needs_cuda(venv):
        venv.install(TORCH)
        return
    # uv knows the index of PyTorch's CPU builds; pip's default on Linux is several GB of CUDA.
    venv.install("uv")
    python = str(venv.python)
    venv.run([python, "-m", "uv", "pip", "install", "--quiet", "--python", python, "--torch-backend=cpu", TORCH])


def build_stand_in(venv, package):
    """Build a message package of compat/, unless the lock file installed the real one."""
    probe = (
        "import importlib.metadata as m, importlib.util as u, sys\n"
        "name = sys.argv[1]\n"
        "ours = {d.metadata['Name'] for d in m.distributions()} & {'kinema4d-compat-' + name.replace('_', '-')}\n"
        "sys.exit(3 if u.find_spec(name) and not ours else 0)"
    )
    # Not from this folder, where the folders of compat/ would be found as namespace packages.
    found = subprocess.run(
        [str(venv.python), "-c", probe, package],
        cwd=str(venv.path),
        stderr=subprocess.DEVNULL,
        env=clean_environment(),
        check=False,
    )
    if found.returncode == 3:
        print(f"   {package} is already installed")
        return
    venv.install("--no-deps", "--no-build-isolation", "--force-reinstall", str(ROOT / "compat" / package))


def main():
    """Bring the venv up to date; print nothing when it already is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--torch", choices=("cpu", "cuda", "none"), default="cpu")
    parser.add_argument("--bench", action="store_true", help="also install the packages that bench/ compares with")
    parser.add_argument("--lerobot", action="store_true", help="also install LeRobot, in a separate folder")
    arguments = parser.parse_args()
    check_machine()
    if os.environ.get("ROS_DISTRO"):
        print(f"note: ROS {os.environ['ROS_DISTRO']} is sourced; .venv uses its own ROS 2 Jazzy wheels")

    venv = Venv(arguments.venv.resolve())
    lock = ROOT / "requirements" / "lock.txt"
    assets = ROOT / "requirements" / "assets.txt"
    model = ROOT / "requirements" / "model-lock.txt"
    bench = ROOT / "requirements" / "bench-lock.txt"
    messages = ROOT / "kinema4d_msgs"
    locked = ("--no-deps", "--require-hashes", "-r")

    venv.create()
    venv.step("pip", "1", lambda: venv.install("--upgrade", "pip>=24"))
    # torch first: a package that depends on any torch would install the CUDA build.
    venv.step("torch", f"{TORCH} {arguments.torch}", lambda: install_torch(venv, arguments.torch))
    venv.step("packages of requirements/lock.txt", digest(lock), lambda: venv.install(*locked, str(lock)))
    if arguments.torch != "none":
        # sam2 is built from source and needs torch for it: use the installed one, not a second in an isolated build.
        here = ("--no-build-isolation", *locked, str(model))
        venv.step("packages of the learned generator", digest(model), lambda: venv.install(*here))
    venv.step("robot meshes", digest(assets), lambda: venv.install(*locked, str(assets)))
    venv.step(
        "kinema4d_msgs (compiles for one or two minutes)",
        digest(messages),
        lambda: venv.install("--no-deps", "--no-build-isolation", "--force-reinstall", str(messages)),
    )
    for package in STAND_INS:
        # moveit_msgs depends on object_recognition_msgs: a change to one stand-in rebuilds all of them.
        key = digest(ROOT / "compat", messages / "cmake")
        venv.step(f"{package}, a stand-in", key, lambda p=package: build_stand_in(venv, p))
    venv.step(
        "kinema4d_ros",
        digest(ROOT / "setup.py", ROOT / "setup.cfg", ROOT / "package.xml"),
        lambda: venv.install("--no-deps", "--no-build-isolation", "--editable", str(ROOT)),
    )
    kernels = sorted(p for p in (ROOT / "kinema4d_ros").rglob("*.py") if "numba" in p.read_text())
    venv.step(
        "numba kernels",
        digest(*kernels),
        lambda: venv.run([str(venv.python), "-m", "kinema4d_ros.runtime.warmup"]),
    )
    if arguments.lerobot:
        lerobot = ROOT / "requirements" / "lerobot.txt"
        folder = venv.path / "share" / "kinema4d-lerobot"

        def install_lerobot():
            shutil.rmtree(str(folder), ignore_errors=True)
            venv.install("--target", str(folder), *locked, str(lerobot))

        venv.step("LeRobot's policies", digest(lerobot), install_lerobot)
    if arguments.bench:
        venv.step("peers of bench/", digest(bench), lambda: venv.install(*locked, str(bench)))


if __name__ == "__main__":
    main()
