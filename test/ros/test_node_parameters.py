"""Parameters on a real node: given at start, described to ROS, changed and refused at run time by another node."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from rcl_interfaces.srv import DescribeParameters, GetParameters, SetParameters
from rclpy.node import Node
from rclpy.parameter import Parameter
from support.ros_graph import DISCOVERY_S, Graph

from kinema4d_ros.core.errors import KinemaError
from kinema4d_ros.ros.nodes import arm, gate, preview
from kinema4d_ros.ros.params import ParameterError, check, declare, parameter, watch

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Settings:
    rate_hz: float = parameter(30.0, "Images per second.", low=1.0, high=120.0)
    generator: str = parameter("composite", "Back-end.", choices=("composite", "diffusion"))
    robot: str = parameter("yam", "Name or file.", read_only=True)
    links: tuple[str, ...] = parameter(("base",), "Links that may touch.")


def node_with(graph: Graph, **given: Any) -> Node:
    overrides = [Parameter(name, value=value) for name, value in given.items()]
    return graph.node("settings", parameter_overrides=overrides)


def call(graph: Graph, kind: Any, service: str, request: Any) -> Any:
    client = graph.node("asker").create_client(kind, f"settings/{service}")
    assert client.wait_for_service(DISCOVERY_S)
    done = threading.Event()
    future = client.call_async(request)
    future.add_done_callback(lambda _: done.set())
    assert done.wait(10.0)
    return future.result()


def set_parameters(graph: Graph, **values: Any) -> list[Any]:
    request = SetParameters.Request(parameters=[Parameter(n, value=v).to_parameter_msg() for n, v in values.items()])
    return list(call(graph, SetParameters, "set_parameters", request).results)


def test_values_given_at_start_are_read_and_a_whole_number_will_do(graph: Graph) -> None:
    assert declare(node_with(graph, rate_hz=60, links=["a", "b"]), Settings) == Settings(60.0, links=("a", "b"))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"rate_hz": 500.0}, "settings: parameter 'rate_hz' is 500.0; expected a number from 1 to 120"),
        ({"rate_hz": "fast"}, "'rate_hz' is 'fast'"),
        ({"generator": "magic"}, "expected one of composite, diffusion"),
        ({"links": [1, 2]}, "expected a list of texts"),
    ],
)
def test_a_bad_value_at_start_stops_the_node_in_words(graph: Graph, given: dict[str, Any], text: str) -> None:
    with pytest.raises(ParameterError) as caught:
        declare(node_with(graph, **given), Settings)
    assert text in str(caught.value)


def test_ros_is_told_description_and_range(graph: Graph) -> None:
    declare(node_with(graph), Settings)
    request = DescribeParameters.Request(names=["rate_hz", "generator"])
    rate, generator = call(graph, DescribeParameters, "describe_parameters", request).descriptors
    assert rate.description == "Images per second."
    assert (rate.floating_point_range[0].from_value, rate.floating_point_range[0].to_value) == (1.0, 120.0)
    assert generator.additional_constraints == "one of composite, diffusion"


def test_another_node_may_set_good_values_and_is_told_why_bad_ones_are_refused(graph: Graph) -> None:
    node = node_with(graph)
    seen: list[Settings] = []

    def on_change(settings: Settings) -> None:
        if settings.rate_hz == 7.0:
            raise KinemaError("seven is taken")
        seen.append(settings)

    watch(node, Settings, declare(node, Settings), on_change)
    assert set_parameters(graph, rate_hz=10.0)[0].successful
    assert set_parameters(graph, generator="diffusion")[0].successful
    assert seen == [Settings(10.0), Settings(10.0, "diffusion")]
    for values, reason in (
        ({"rate_hz": float("nan")}, "rate_hz"),
        ({"rate_hz": 1000.0}, "rate_hz"),
        ({"rate_hz": 7.0}, "seven is taken"),
        ({"generator": "magic"}, "expected one of composite, diffusion"),
        ({"robot": "other"}, "read"),
    ):
        [answer] = set_parameters(graph, **values)
        assert not answer.successful
        assert reason in answer.reason, answer.reason
    assert len(seen) == 2
    request = GetParameters.Request(names=["rate_hz", "generator", "robot"])
    stored = call(graph, GetParameters, "get_parameters", request).values
    assert (stored[0].double_value, stored[1].string_value, stored[2].string_value) == (10.0, "diffusion", "yam")


def test_no_other_node_can_switch_the_arm_s_motion_on(graph: Graph) -> None:
    node = node_with(graph)
    settings = declare(node, arm.Settings)
    assert not settings.enable_motion
    watch(node, arm.Settings, settings, lambda changed: None)
    for values in ({"enable_motion": True}, {"speed_share": 1.0}, {"driver": "other.module:Arm"}):
        [answer] = set_parameters(graph, **values)
        assert not answer.successful
        assert "read" in answer.reason
    assert not node.get_parameter("enable_motion").value


def test_preview_and_gate_start_with_one_tolerance() -> None:
    file = yaml.safe_load((ROOT / "config" / "sim.yaml").read_text())
    shown, approved = (
        check(settings, file[f"/**/{name}"]["ros__parameters"])
        for name, settings in (("preview", preview.Settings), ("gate", gate.Settings))
    )
    assert (shown.start_tolerance_rad, shown.start_tolerance_m) == (0.02, 0.003)
    assert (approved.start_tolerance_rad, approved.start_tolerance_m) == (0.02, 0.003)
