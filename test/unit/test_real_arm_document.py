"""docs/real_arm.md against the code: its commands, options, launch arguments, parameters and messages exist."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest
import yaml

pytest.importorskip("rclpy", reason="needs ROS 2")

from kinema4d_ros.cli import build_parser
from kinema4d_ros.ros.graph import SIM_ARGUMENTS, read_arguments, sim_graph
from kinema4d_ros.ros.nodes import arm
from kinema4d_ros.ros.params import check

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "real_arm.md").read_text()
BLOCKS = TEXT.split("```")[1::2]
"""Code blocks, each after the name of its language."""
INLINE = re.findall(r"`(kinema4d [^`]+)`", TEXT)
LINES = [line for block in BLOCKS for line in block.splitlines()[1:]]


def verbs(parser: argparse.ArgumentParser, words: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """Descend into the parser of the verb; return it with the words that are left."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and words and words[0] in action.choices:
            return verbs(action.choices[words[0]], words[1:])
    return parser, words


@pytest.mark.parametrize("line", [line for line in [*LINES, *INLINE] if line.startswith("kinema4d ")])
def test_commands_and_their_options_exist(line: str) -> None:
    words = shlex.split(line)[1:]
    parser, rest = verbs(build_parser(), words)
    assert rest != words, f"no verb in '{line}'"
    known = {option for action in parser._actions for option in action.option_strings}
    assert [word for word in rest if word.startswith("--") and word not in known] == []


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("ros2 launch")])
def test_launch_arguments_exist_and_choose_a_graph(line: str) -> None:
    words = line.split()
    assert words[2:4] == ["kinema4d_ros", "sim.launch.py"]
    specs = sim_graph(read_arguments(SIM_ARGUMENTS, dict(word.split(":=") for word in words[4:])))
    started = {spec.name: spec for spec in specs}
    assert started["arm"].parameters["enable_motion"] is ("enable_motion:=true" in words)
    assert "lab" not in started


def test_the_steps_are_found() -> None:
    assert sum(line.startswith("ros2 launch") for line in LINES) == 3
    assert sum(line.startswith("kinema4d ") for line in LINES) >= 8


def test_parameters_of_the_arm_exist() -> None:
    (document,) = (block for block in BLOCKS if block.startswith("yaml"))
    values = yaml.safe_load(document.removeprefix("yaml"))["/**/arm"]["ros__parameters"]
    given = re.findall(r"kinema4d_arm .*-p (\w+):=(\w+)", TEXT)
    assert given
    assert check(arm.Settings, {**values, **{name: yaml.safe_load(value) for name, value in given}})


def test_messages_are_those_of_the_code() -> None:
    tables = TEXT.split("## Messages")[1].split("The gate's refusals")[0]
    said = re.findall(r"^\| `([^`]+)` \|", tables, re.MULTILINE)
    assert len(said) > 25
    folders = [ROOT / "kinema4d_ros" / "ros", ROOT / "kinema4d_ros" / "arm"]
    code = "\n".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    assert [text for text in said if text not in code] == []
    assert "Not tried on hardware" in TEXT
