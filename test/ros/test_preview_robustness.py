"""`kinema4d preview --robustness` on a running graph: simulated from the image and depth of the graph's rollout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.sim_graph import client, process_environment, running

from kinema4d_ros.cli import main
from kinema4d_ros.kinematics import choose_kinematics
from kinema4d_ros.lab import LabSimulation
from kinema4d_ros.lab.scripted import pick_plan
from kinema4d_ros.robot import Robot
from kinema4d_ros.ros import names

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(900)]


def test_a_pick_in_the_graphs_lab_has_margins(
    yam: Robot, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = LabSimulation("canonical", 0, yam)
    plan = pick_plan(lab, lab.scenario.target, choose_kinematics(yam))
    np.savez(tmp_path / "plan.npz", names=plan.names, times=plan.times, positions=plan.positions)
    for name, value in process_environment().items():
        monkeypatch.setenv(name, value)
    with running(("lab", "twin", "preview", "generator")):
        with client() as graph:
            for endpoint in (names.JOINT_STATES, names.CAMERA_DEPTH):
                graph.listen(endpoint)
                graph.wait_for(lambda e=endpoint: graph.newest(e) is not None, 60.0, endpoint.name)  # type: ignore[misc]
        arguments = ["preview", "--trajectory", str(tmp_path / "plan.npz"), "--robustness", "--timeout", "120"]
        assert main([*arguments, "--out", str(tmp_path / "made")]) == 0
    document = json.loads((tmp_path / "made_robustness.json").read_text())
    assert document["known"], document["unknowns"]
    assert document["sentence"] in capsys.readouterr().out
    assert document["probability"] > 0.5
    # The fingers are 14 mm away from the object on both sides.
    closing = [one["offset_m"] for one in document["margins"].values() if one["closing"]]
    assert all(offset == "beyond" or offset > 0.01 for offset in closing)
