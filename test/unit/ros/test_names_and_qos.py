"""Table of endpoints: valid and unique names, importable types, compatible QoS profiles."""

from __future__ import annotations

import re

import pytest
from rclpy.qos import (
    QoSCompatibility,
    QoSDurabilityPolicy,
    QoSProfile,
    QoSReliabilityPolicy,
    qos_check_compatible,
    qos_profile_sensor_data,
)
from rclpy.validate_topic_name import validate_topic_name

from kinema4d_ros.ros import names, qos

GLOBAL = {"/tf", "/tf_static", "/clock", "/diagnostics"}


@pytest.mark.parametrize("endpoint", names.ENDPOINTS, ids=lambda e: e.name)
def test_an_endpoint_is_valid_and_its_type_exists(endpoint: names.Endpoint) -> None:
    assert validate_topic_name(endpoint.name)
    assert endpoint.name in GLOBAL or not endpoint.name.startswith("/")
    assert endpoint.interface().__name__ == endpoint.type.rsplit("/", 1)[1]
    assert re.fullmatch(r"\w+/(msg|srv|action)/\w+", endpoint.type)
    assert {"service": "srv", "action": "action"}.get(endpoint.kind, "msg") == endpoint.type.split("/")[1]
    assert bool(endpoint.qos) == (endpoint.kind in ("in", "out"))
    if endpoint.qos:
        assert qos.profile(endpoint) is getattr(qos, endpoint.qos)


def test_names_are_unique_and_all_in_the_table() -> None:
    found = [e.name for e in names.ENDPOINTS]
    assert len(set(found)) == len(found) >= 25
    table = names.markdown_table()
    assert all(f"`{name}`" in table for name in found)
    assert table.count("\n") == len(found) + len(names.FRAMES) + 2
    assert len({line.count("|") for line in table.splitlines()}) == 1
    assert names.lab_object_topic("red_cube") == "kinema4d/lab/objects/red_cube"


@pytest.mark.parametrize("publisher", [qos.STREAM_OUT, qos.LATCHED, qos_profile_sensor_data])
def test_sensor_input_matches_every_driver(publisher: object) -> None:
    assert qos_check_compatible(publisher, qos.SENSOR_IN)[0] != QoSCompatibility.ERROR


def test_plan_input_matches_default_and_latched_publishers_without_replay() -> None:
    assert qos_check_compatible(qos.COMMAND_OUT, qos.PLAN_IN)[0] != QoSCompatibility.ERROR
    assert qos_check_compatible(qos.LATCHED, qos.PLAN_IN)[0] != QoSCompatibility.ERROR
    assert qos.PLAN_IN.durability == QoSDurabilityPolicy.VOLATILE
    assert qos.COMMAND_OUT.durability == QoSDurabilityPolicy.VOLATILE


def test_the_lab_s_joint_states_reach_subscribers_with_default_qos() -> None:
    assert qos_check_compatible(qos.SENSOR_OUT, QoSProfile(depth=10))[0] != QoSCompatibility.ERROR
    assert qos_check_compatible(qos.SENSOR_OUT, qos.SENSOR_IN)[0] != QoSCompatibility.ERROR


def test_results_are_latched_and_reliable() -> None:
    for endpoint in (names.PREDICTED_ROLLOUT, names.PLAN_REPORT, names.ROBOT_DESCRIPTION):
        profile = qos.profile(endpoint)
        assert profile.durability == QoSDurabilityPolicy.TRANSIENT_LOCAL
        assert profile.reliability == QoSReliabilityPolicy.RELIABLE
        assert profile.depth == 1


def test_preview_status_is_reliable_and_latched() -> None:
    profile = qos.profile(names.PREVIEW_STATUS)
    assert profile.durability == QoSDurabilityPolicy.TRANSIENT_LOCAL
    assert profile.reliability == QoSReliabilityPolicy.RELIABLE
    assert profile.depth >= 8, "a depth of 1 loses phases that end before the next one is sent"
