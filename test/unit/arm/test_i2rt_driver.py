"""I2RT's own driver, as installed from PyPI, on a stand-in CAN bus: no hardware and no python-can was used."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from kinema4d_ros.arm import DriverOptions, open_driver
from kinema4d_ros.core.errors import SetupError
from kinema4d_ros.robot import Robot

ROOT = Path(__file__).resolve().parents[3]
SPEC = importlib.util.find_spec("i2rt")

pytestmark = pytest.mark.skipif(SPEC is None, reason="dreamscale-i2rt is not installed")


@pytest.mark.skipif(importlib.util.find_spec("can") is not None, reason="python-can is installed")
def test_without_its_dependencies_the_driver_is_refused_in_words(yam: Robot) -> None:
    with pytest.raises(SetupError, match="cannot be imported") as caught:
        open_driver("i2rt", yam, DriverOptions())
    assert caught.value.hint == "pip install dreamscale-i2rt"


def test_joint_limits_are_those_of_the_driver_s_model(yam: Robot) -> None:
    """The same joints with the same zero and sign: otherwise a plan would mean another motion."""
    assert SPEC is not None
    assert SPEC.origin is not None
    found = {}
    for path in sorted((Path(SPEC.origin).parent / "robot_models" / "arm" / "yam" / "v1").glob("*.xml")):
        for joint in ElementTree.parse(path).iter("joint"):  # noqa: S314 - a file of an installed package
            if joint.get("range") and joint.get("name", "").startswith("joint"):
                found[joint.get("name")] = [float(x) for x in joint.get("range", "").split()]
    assert len(found) >= 5, "the vendor's model has moved"
    for name, limits in found.items():
        at = yam.joint_names.index(str(name))
        assert np.allclose(limits, [yam.lower[at], yam.upper[at]], atol=0.01), name


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_vendor_s_driver_reads_moves_fails_and_closes(yam: Robot) -> None:
    folders = [ROOT, ROOT / "test", ROOT / "test" / "support" / "fake_can"]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(ROOT / "test" / "support" / "i2rt_on_bus.py")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert "calibrate_gripper:=true" in found["no range"]
    assert not found["touched"], "the motors were enabled before the options were checked"
    assert "sudo ip link set can9 up" in found["no bus"]
    assert "ur5" in found["no such arm"]
    assert "NO_GRIPPER" in found["no gripper"]
    assert "i2rt yam with linear_4310 on can0" in found["description"]
    assert yam.gripper is not None
    # Motor angles of the gripper: 0.3 closed, -6.0 open.
    assert np.allclose(found["start"], [0, 0.5, 0, 0, 0, 0, 4.3 / 6.3 * yam.gripper.open], atol=2e-3)
    assert found["stiff before a command"] == 0, "without a command the arm must float"
    assert found["written"] == [], "motors in the right mode are not written to"
    assert np.allclose(found["reached"], [0, 0.8, 0, 0, 0, -0.2, 0.01], atol=2e-3)
    assert found["stiff after"]
    assert np.isclose(found["gripper motor"], 0.3 - 6.3 * 0.01 / yam.gripper.open, atol=0.05)
    assert "i2rt stopped" in found["over current"]
    assert np.allclose([found["in the middle"], found["a turn away"]], 3.3 / 6.3 * yam.gripper.open, atol=1e-3)
    assert "outside its range" in found["nowhere"]
    assert "closed as well as open" in found["at an end"]
    closed, opened = re.findall(r"closed (\S+) rad, open (\S+) rad", found["calibrated"])[0]
    assert np.allclose([float(closed), float(opened)], [0.3, -6.0], atol=0.1), found["calibrated"]
    assert found["open buses"] == 0
