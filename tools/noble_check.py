"""Follow docs/ubuntu.md in an Ubuntu 24.04 root of its own: packages, venv, colcon build, smoke tests.

debootstrap noble ─> Debian packages of package.xml ─> venv with the constraints ─> (ROS 2 wheels) ─> colcon ─> tests

Needs root, debootstrap and the Ubuntu archive. ROS 2's own packages are replaced by the wheels that `make setup` uses:
apt's ros-jazzy-* packages, rosdep, RViz and MoveIt are not tried. The root is kept, so that a second run is short; each
finished step leaves a stamp. Exit code 1: a step failed; 3: it cannot be tried on this machine.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAILED, CANNOT = 1, 3
SCRIPTS = Path("/usr/share/debootstrap/scripts")
"""The scripts for releases; they also name the archive. An older debootstrap does not know noble, but the script is the
same for all of Ubuntu's releases."""
TOOLS = "ca-certificates python3-venv python3-dev python3-pip g++ make libgl1 libegl1"
CERTIFICATES = "/opt/certificates.crt"
SHARED = {name: name for name in ("/etc/resolv.conf", "/etc/hosts")} | {
    "/etc/ssl/certs/ca-certificates.crt": CERTIFICATES
}
"""Files of this machine that name resolution and TLS in the root need, and their places there. The certificates are
beside those of Debian's package, because this machine may reach the network through a proxy with its own."""

WORKSPACE = "/opt/ws"
VENV = "/opt/venv"
SOURCE = f"{WORKSPACE}/src/kinema4d_ros"
ACTIVATE = f". {VENV}/bin/activate && export AMENT_PREFIX_PATH={VENV} CMAKE_PREFIX_PATH={VENV}"
INSTALLED = f"{ACTIVATE} && . {WORKSPACE}/install/setup.sh"
TESTS = "test/unit/core test/unit/io test/unit/robot test/unit/kinematics"


def debian_packages() -> list[str]:
    """Return the Debian packages that package.xml names; a rosdep key of Python is called like its package."""
    return sorted(set(re.findall(r"<\w*depend>(python3-[\w-]+)</", (ROOT / "package.xml").read_text())))


def steps() -> Iterator[tuple[str, str]]:
    """Yield name and shell command of every step inside the root."""
    yield "Debian packages", f"apt-get update -q && apt-get install -qy {TOOLS} {' '.join(debian_packages())}"
    yield "venv", f"python3 -m venv --system-site-packages {VENV}"
    pip = f"{VENV}/bin/pip install --quiet -c {SOURCE}/requirements/constraints-noble.txt"
    yield "packages of requirements/noble.in", f"{pip} -r {SOURCE}/requirements/noble.in"
    yield "meshes of the YAM", f"{pip} --no-deps dreamscale-i2rt"
    # In place of apt's ros-jazzy-* packages and colcon, which this root cannot have.
    yield (
        "ROS 2 wheels",
        f"{pip} -r {SOURCE}/requirements/ros.in -r {SOURCE}/requirements/build.in pin urdf-parser-py xacro "
        "colcon-common-extensions pytest pytest-timeout hypothesis",
    )
    yield (
        "stand-ins for message packages",
        f"{ACTIVATE} && cd {SOURCE} && for p in tf2_msgs object_recognition_msgs moveit_msgs control_msgs; do "
        "pip install --quiet --no-deps --no-build-isolation compat/$p || exit 1; done",
    )
    yield (
        "colcon build",
        f"{ACTIVATE} && cd {WORKSPACE} && python -m colcon build "
        "--base-paths src/kinema4d_ros src/kinema4d_ros/kinema4d_msgs",
    )
    yield "kinema4d on PATH", f"{INSTALLED} && cd / && command -v kinema4d && kinema4d --help > /dev/null"
    yield "versions", f"{INSTALLED} && python -c 'import numpy, cv2; print(numpy.__version__, cv2.__version__)'"
    yield "a preview", f"{INSTALLED} && cd /tmp && python {SOURCE}/examples/preview.py"
    yield "unit tests", f"{INSTALLED} && cd {SOURCE} && python -m pytest -q --quick -p no:cacheprovider {TESTS}"


def release_script() -> Path:
    """Return debootstrap's script for noble."""
    return SCRIPTS / ("noble" if (SCRIPTS / "noble").exists() else "gutsy")


def default_mirror() -> str:
    """Return the archive that debootstrap's script names for current releases, "" if it names none."""
    found = re.findall(r"default_mirror (http\S+/ubuntu)\b", release_script().read_text())
    return next((mirror for mirror in found if "old-releases" not in mirror), "")


def why_not(mirror: str) -> str:
    """Say why this cannot be tried here; empty if it can."""
    if os.geteuid() != 0:
        return "it needs root, for debootstrap and chroot"
    if shutil.which("debootstrap") is None:
        return "debootstrap is not installed: sudo apt-get install debootstrap"
    try:
        mirror = mirror or default_mirror()
        with urllib.request.urlopen(f"{mirror}/dists/noble/Release", timeout=30.0) as answer:  # noqa: S310 # nosec B310
            answer.read(1)
    except (ValueError, OSError) as error:
        return f"the Ubuntu archive '{mirror}' cannot be reached: {error}; name another one with --mirror"
    return ""


def make_root(root: Path, mirror: str) -> int:
    """Create the root and copy the committed sources into it; return an exit code."""
    if not (root / "usr" / "bin" / "apt-get").exists():
        print("-- debootstrap", flush=True)
        command = ["debootstrap", "--variant=minbase", "--components=main,universe", "noble", str(root)]
        command += [mirror or default_mirror(), str(release_script())]
        if code := run(command):
            return code
    for name, place in SHARED.items():
        if Path(name).is_file():
            (root / place[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(name).resolve(), root / place[1:])
    source = root / SOURCE[1:]
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    archive = root / "source.tar"
    return run(["git", "archive", "-o", str(archive), "HEAD"]) or run(["tar", "-xf", str(archive), "-C", str(source)])


def run(command: list[str]) -> int:
    """Run a command in the checkout and return its exit code."""
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def inside(root: Path, script: str) -> int:
    """Run a shell script in the root, with a clean environment, /proc and /dev/shm."""
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "PIP_CERT": CERTIFICATES,
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
    }
    given = [f"{name}={value}" for name, value in environment.items()]
    place = shlex.quote(str(root))
    mount = f"mount -t proc proc {place}/proc; mount -t tmpfs tmpfs {place}/dev/shm 2>/dev/null; "  # noqa: S108
    command = f"{mount} exec chroot {place} env -i {shlex.join(given)} sh -ec {shlex.quote(script)}"
    # Mounts in a namespace of their own: they are gone when the command ends, however that is.
    return run(["unshare", "--mount", "sh", "-c", command])


def main() -> int:
    """Run the steps that have not succeeded yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT / "out" / "noble", help="folder of the Ubuntu root")
    parser.add_argument("--mirror", default="", help="Ubuntu archive (default: that of debootstrap)")
    arguments = parser.parse_args()
    os.nice(19)
    if reason := why_not(arguments.mirror):
        print(f"not tried: {reason}")
        return CANNOT
    root = arguments.root.resolve()
    root.mkdir(parents=True, exist_ok=True)
    if make_root(root, arguments.mirror):
        print("failed: the root could not be made")
        return FAILED
    for name, script in steps():
        stamp = root / "opt" / f".done-{re.sub(r'[^a-z0-9]+', '-', name.lower())}"
        if stamp.exists() and stamp.read_text() == script:
            continue
        print(f"-- {name}", flush=True)
        if code := inside(root, script):
            print(f"failed: {name} (exit code {code})")
            return FAILED
        if not name.startswith(("colcon", "kinema4d", "a preview", "unit", "versions")):
            stamp.write_text(script)
    print("passed; not tried: rosdep, apt's ROS 2 packages, RViz, MoveIt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
