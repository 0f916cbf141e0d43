from __future__ import annotations

from pathlib import Path

import pytest

from kinema4d_ros.core.errors import ErrorCode, RobotError
from kinema4d_ros.robot.urdf import expand_xacro

HEAD = '<robot name="r" xmlns:xacro="http://www.ros.org/wiki/xacro">'


def test_macros_and_includes(tmp_path: Path) -> None:
    part = '<xacro:macro name="part" params="n"><link name="${n}"/></xacro:macro>'
    (tmp_path / "part.xacro").write_text(f"{HEAD}{part}</robot>")
    main = tmp_path / "r.xacro"
    main.write_text(f'{HEAD}<xacro:include filename="part.xacro"/><xacro:part n="a${{1 + 1}}"/></robot>')
    text = expand_xacro(main)
    assert '<link name="a2"/>' in text
    assert "xacro:" not in text.replace("xmlns:xacro", "")


def test_entities_are_refused_in_the_file_and_its_includes(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.xacro"
    bomb.write_text(f'<!DOCTYPE r [<!ENTITY a "x">]>{HEAD}<link name="&a;"/></robot>')
    innocent = tmp_path / "innocent.xacro"
    innocent.write_text(f'{HEAD}<xacro:include filename="bomb.xacro"/></robot>')
    for path in (bomb, innocent):
        with pytest.raises(RobotError, match=r"bomb.xacro") as caught:
            expand_xacro(path)
        assert caught.value.code is ErrorCode.URDF_UNSAFE


@pytest.mark.parametrize(
    "body",
    [
        '<xacro:include filename="none.xacro"/>',
        "<xacro:no_such_macro/>",
        '<link name="${unknown}"/>',
        '<link name="${1 / 0}"/>',
        '<link name="$(arg missing)"/>',
    ],
)
def test_what_xacro_cannot_expand(tmp_path: Path, body: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.xacro"
    path.write_text(f"{HEAD}{body}</robot>")
    with pytest.raises(RobotError, match="cannot be expanded") as caught:
        expand_xacro(path)
    assert caught.value.code is ErrorCode.URDF_MALFORMED
    assert capfd.readouterr().err == ""


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    bad, good = tmp_path / "bad.xacro", tmp_path / "good.xacro"
    bad.write_text(f"{HEAD}<xacro:no_such_macro/></robot>")
    good.write_text(f'{HEAD}<link name="a"/></robot>')
    with pytest.raises(RobotError):
        expand_xacro(bad)
    assert '<link name="a"/>' in expand_xacro(good)


@pytest.mark.parametrize(
    "body",
    ['<xacro:include filename="../outside.xacro"/>', "<link name=\"${load_yaml('../outside.xacro')}\"/>"],
)
def test_nothing_outside_the_package_is_read(tmp_path: Path, body: str) -> None:
    (tmp_path / "outside.xacro").write_text(f"{HEAD}</robot>")
    (tmp_path / "own").mkdir()
    path = tmp_path / "own" / "r.xacro"
    path.write_text(f"{HEAD}{body}</robot>")
    with pytest.raises(RobotError, match=r"tried to read .*outside\.xacro") as caught:
        expand_xacro(path)
    assert caught.value.code is ErrorCode.URDF_UNSAFE


def test_the_expansion_has_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinema4d_ros.robot.urdf.TIME_LIMIT_S", 3.0)
    path = tmp_path / "r.xacro"
    path.write_text(f'{HEAD}<link name="${{9**9**9}}"/></robot>')
    with pytest.raises(RobotError, match="longer than 3 s") as caught:
        expand_xacro(path)
    assert caught.value.code is ErrorCode.URDF_UNSAFE
