"""The graph as data: arguments, defaults and nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kinema4d_ros.cli.sim import node_process
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.ros.graph import GENERATOR_ARGUMENTS, SIM_ARGUMENTS, generator_graph, read_arguments, sim_graph

ROOT = Path(__file__).resolve().parents[3]


def names(**given: str) -> list[str]:
    return [spec.name for spec in sim_graph(read_arguments(SIM_ARGUMENTS, given))]


def test_the_default_graph() -> None:
    assert names() == ["lab", "twin", "preview", "generator", "playback", "gate", "viewer"]


def test_arguments_choose_nodes() -> None:
    assert "lab" not in names(lab="false")
    assert "generator" not in names(generator="false")
    assert "viewer" not in names(viewer="false")
    assert "recorder" in names(record="true")
    assert "scene" in names(moveit="true")
    assert "rviz_marker" in names(rviz="true")
    only = generator_graph(read_arguments(GENERATOR_ARGUMENTS, {}))
    assert [spec.name for spec in only] == ["generator"]
    for graph, arguments in ((generator_graph, GENERATOR_ARGUMENTS), (sim_graph, SIM_ARGUMENTS)):
        specs = graph(read_arguments(arguments, {"robot": "other.urdf"}))
        assert next(spec for spec in specs if spec.name == "generator").parameters["robot"] == "other.urdf"


def test_the_gate_always_runs() -> None:
    assert "gate" in names(lab="false", generator="false", viewer="false")


def test_the_real_arm_s_driver_starts_only_when_asked_for_and_without_motion() -> None:
    assert "arm" not in names(lab="false")
    (arm,) = (
        spec
        for spec in sim_graph(read_arguments(SIM_ARGUMENTS, {"lab": "false", "driver": "i2rt"}))
        if spec.name == "arm"
    )
    assert arm.parameters == {"robot": "yam", "driver": "i2rt", "enable_motion": False}
    assert arm.essential


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"labb": "true"}, "labb"),
        ({"lab": "maybe"}, "maybe"),
        ({"seed": "x"}, "seed"),
        ({"driver": "i2rt"}, "the lab simulates an arm"),
        ({"lab": "false", "enable_motion": "true"}, "without a driver"),
    ],
)
def test_bad_arguments_are_refused(given: dict[str, str], word: str) -> None:
    with pytest.raises(KinemaError, match=word) as caught:
        names(**given)
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID


def test_every_node_has_a_module_an_executable_and_a_purpose() -> None:
    everything = [
        spec
        for given in ({"record": "true", "moveit": "true", "rviz": "true"}, {"lab": "false", "driver": "i2rt"})
        for spec in sim_graph(read_arguments(SIM_ARGUMENTS, given))
    ]
    scripts = (ROOT / "setup.py").read_text()
    for spec in everything:
        assert (ROOT / "kinema4d_ros" / "ros" / "nodes" / f"{spec.name}.py").is_file()
        assert f'"{spec.name}"' in scripts
        assert spec.purpose


def test_processes_have_namespace_parameters_and_sim_time() -> None:
    values = read_arguments(SIM_ARGUMENTS, {"namespace": "/cell1/", "use_sim_time": "true", "seed": "7"})
    lab = next(spec for spec in sim_graph(values) if spec.name == "lab")
    command = list(node_process(lab, values).command)
    assert "__ns:=/cell1" in command
    assert "use_sim_time:=true" in command
    assert "seed:=7" in command
    assert "publish_clock:=true" in command, "otherwise no node does"


def test_the_params_file_names_nodes_that_exist() -> None:
    document = yaml.safe_load((ROOT / "config" / "sim.yaml").read_text())
    given = dict.fromkeys(("record", "moveit", "rviz"), "true")
    known = {spec.name for spec in sim_graph(read_arguments(SIM_ARGUMENTS, given))}
    assert {key.rsplit("/", 1)[-1] for key in document} <= known
