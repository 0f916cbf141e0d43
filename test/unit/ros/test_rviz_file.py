"""The displays of config/rviz/sim.rviz against the table of topics, and the arguments that RViz gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from rclpy.qos import (
    QoSCompatibility,
    QoSDurabilityPolicy,
    QoSHistoryPolicy,
    QoSProfile,
    QoSReliabilityPolicy,
    qos_check_compatible,
)

from kinema4d_ros.cli import main
from kinema4d_ros.cli.sim import _rviz
from kinema4d_ros.core.errors import SetupError
from kinema4d_ros.io.resources import share_path
from kinema4d_ros.ros import names
from kinema4d_ros.ros.graph import SIM_ARGUMENTS, read_arguments, rviz_arguments
from kinema4d_ros.ros.qos import profile

DOCUMENT = yaml.safe_load(share_path("config/rviz/sim.rviz").read_text())
MANAGER = DOCUMENT["Visualization Manager"]
DISPLAYS = {display["Name"]: display for display in MANAGER["Displays"]}
TYPES = {
    "RobotModel": "std_msgs/msg/String",
    "PointCloud2": "sensor_msgs/msg/PointCloud2",
    "MarkerArray": "visualization_msgs/msg/MarkerArray",
    "Image": "sensor_msgs/msg/Image",
}
TABLE = {endpoint.name: endpoint for endpoint in names.ENDPOINTS}


def topic_of(display: dict[str, Any]) -> dict[str, Any] | None:
    return display.get("Topic") or display.get("Description Topic")


@pytest.mark.parametrize("name", [name for name, display in DISPLAYS.items() if topic_of(display)])
def test_a_display_gets_what_is_published(name: str) -> None:
    display = DISPLAYS[name]
    topic = topic_of(display)
    assert topic is not None
    endpoint = TABLE[topic["Value"]]  # relative, as in the table: a namespace moves it
    assert endpoint.kind == "out"
    assert endpoint.type == TYPES[display["Class"].rpartition("/")[2]]
    wanted = QoSProfile(
        depth=topic["Depth"],
        history=QoSHistoryPolicy[topic["History Policy"].upper().replace(" ", "_")],
        reliability=QoSReliabilityPolicy[topic["Reliability Policy"].upper().replace(" ", "_")],
        durability=QoSDurabilityPolicy[topic["Durability Policy"].upper().replace(" ", "_")],
    )
    published = profile(endpoint)
    compatibility, reason = qos_check_compatible(published, wanted)
    assert compatibility != QoSCompatibility.ERROR, reason
    assert wanted.durability == published.durability, "an RViz that starts later would get nothing"


def test_the_menu_has_its_display_and_the_tool_that_opens_it() -> None:
    (menu,) = [display for display in DISPLAYS.values() if display["Class"].endswith("/InteractiveMarkers")]
    assert menu["Interactive Markers Namespace"] == names.MENU_NAMESPACE
    for part, endpoint in (
        ("update", names.MENU_UPDATE),
        ("feedback", names.MENU_FEEDBACK),
        ("get_interactive_markers", names.MENU_MARKERS),
    ):
        assert endpoint.name == f"{names.MENU_NAMESPACE}/{part}"
    assert MANAGER["Tools"][0]["Class"] == "rviz_default_plugins/Interact"


def test_every_marker_topic_has_a_display_and_frames_follow_the_fixed_frame() -> None:
    shown = {topic["Value"] for display in DISPLAYS.values() if (topic := topic_of(display))}
    markers = {e.name for e in names.ENDPOINTS if e.kind == "out" and e.type == TYPES["MarkerArray"]}
    assert markers <= shown
    assert DISPLAYS["Table"]["Reference Frame"] == "<Fixed Frame>"
    assert MANAGER["Views"]["Current"]["Target Frame"] == "<Fixed Frame>"


def values(**given: str) -> dict[str, str]:
    return read_arguments(SIM_ARGUMENTS, {"rviz": "true", **given})


def test_rviz_gets_displays_frame_namespace_and_clock(tmp_path: Path) -> None:
    alone = rviz_arguments(values())
    assert alone[:4] == ["-d", str(share_path("config/rviz/sim.rviz")), "-f", "base_link"]
    assert alone[4:] == ["--ros-args", "-p", "use_sim_time:=false"]
    other = tmp_path / "camera.yaml"
    text = share_path("calibration/demo_lab.yaml").read_text()
    other.write_text(text.replace("base_link", "arm_base"))
    there = rviz_arguments(values(namespace="/lab1/", use_sim_time="true", calibration=str(other)))
    assert there[2:] == ["-f", "arm_base", "--ros-args", "-r", "__ns:=/lab1", "-p", "use_sim_time:=true"]


def test_a_missing_rviz2_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="rviz2 is not installed"):
        _rviz(values())
    started: list[object] = []
    monkeypatch.setattr("kinema4d_ros.cli.sim._supervise", started.append)
    assert main(["sim", "--rviz", "true"]) == 2
    assert "rviz2 is not installed" in capsys.readouterr().err
    assert not started
    (tmp_path / "rviz2").write_text("#!/bin/sh\n")
    (tmp_path / "rviz2").chmod(0o755)
    command = list(_rviz(values()).command)
    at = command.index(str(tmp_path / "rviz2"))
    assert command[at + 1 :] == rviz_arguments(values())
