from __future__ import annotations

import pytest

from kinema4d_ros.core.errors import ErrorCode, MeshError, RobotError
from kinema4d_ros.robot import xml_screen
from kinema4d_ros.robot.xml_screen import screen_xml

LAUGHS = """<!DOCTYPE x [<!ENTITY a "haha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><robot name="&b;"/>"""
OUTSIDE = """<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/hostname">]><robot name="r">&f;</robot>"""
REMOTE_DTD = """<!DOCTYPE robot SYSTEM "http://127.0.0.1/x.dtd"><robot name="r"/>"""


def test_plain_xml_passes() -> None:
    root = screen_xml(b"<?xml version='1.0' encoding='latin-1'?><robot name='\xe4'/>", "file")
    assert root.tag == "robot"
    assert root.get("name") == "ä"


@pytest.mark.parametrize("text", [LAUGHS, OUTSIDE, REMOTE_DTD])
def test_declarations_are_refused_before_they_are_expanded(text: str) -> None:
    with pytest.raises(RobotError, match="DTD, an entity") as caught:
        screen_xml(text, "bad.urdf")
    assert caught.value.code is ErrorCode.URDF_UNSAFE


@pytest.mark.parametrize(
    "data", [b"", b"<robot", b"<a></b>", b"\x00\x01\x02", b"<?xml version='1.0' encoding='no-such'?><a/>"]
)
def test_broken_xml_is_malformed(data: bytes) -> None:
    with pytest.raises(RobotError, match="well-formed") as caught:
        screen_xml(data, "bad.urdf")
    assert caught.value.code is ErrorCode.URDF_MALFORMED
    with pytest.raises(MeshError) as mesh:
        screen_xml(data, "bad.dae", malformed=MeshError)
    assert mesh.value.code is ErrorCode.MESH_MALFORMED


@pytest.mark.parametrize("depth", [101, 50_000])
def test_depth_is_limited(depth: int) -> None:
    assert screen_xml("<a>" * 100 + "</a>" * 100, "deep.urdf").tag == "a"
    with pytest.raises(RobotError, match="more than 100 deep") as caught:
        screen_xml("<a>" * depth + "</a>" * depth, "deep.urdf")
    assert caught.value.code is ErrorCode.URDF_UNSAFE


def test_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xml_screen, "MAX_XML_BYTES", 100)
    with pytest.raises(RobotError, match="101 bytes") as caught:
        screen_xml(b"<a>" + b" " * 94 + b"</a>", "big.urdf")
    assert caught.value.code is ErrorCode.URDF_UNSAFE
