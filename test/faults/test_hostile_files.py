"""Files made to do harm run nothing, read nothing outside, and do not exhaust the machine; each is refused by its code.

The attacks are a table in `support.hostile_files`; one process carries them out under the kernel's watch.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.figures import Figures
from support.hostile_files import ATTACKS, CONTROLS, zeros_npz, zeros_png
from support.ros_graph import ROOT

from kinema4d_ros.acquisition.backends import ExternalCommand
from kinema4d_ros.core.errors import ErrorCode, KinemaError
from kinema4d_ros.io.files import read_yaml
from kinema4d_ros.io.images import read_image
from kinema4d_ros.io.trajectories import read_trajectory
from kinema4d_ros.robot.meshes import load_mesh
from kinema4d_ros.robot.xml_screen import screen_xml

pytestmark = pytest.mark.timeout(1200)

LIMIT_S = 900.0
NAMES = {attack.name: attack.codes for attack in ATTACKS}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """What became of the attacks that are asked for, by name."""
    wanted = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    names = [attack.name for attack in (*ATTACKS, *CONTROLS) if attack.name in wanted]
    folder = tmp_path_factory.mktemp("hostile")
    done = subprocess.run(
        [sys.executable, "-m", "support.hostile_child", str(folder), *names],
        env={**os.environ, "PYTHONPATH": str(ROOT / "test")},
        cwd=folder,
        capture_output=True,
        timeout=LIMIT_S,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return {report["name"]: report for report in found}


@pytest.mark.parametrize("name", list(NAMES), ids=str)
def test_a_hostile_file_does_no_harm(name: str, reports: dict[str, dict[str, Any]], figures: Figures) -> None:
    report, codes = reports[name], NAMES[name]
    figures.note(f"hostile file: {name}", "refused as", report["code"] or "read without harm")
    assert not report["ran"], "the payload ran"
    assert not report["opened"], "the secret outside was opened"
    assert not report["started"], "a program was started"
    assert report["code"] in codes if codes else not report["code"], report


@pytest.mark.parametrize(
    ("name", "sign"), zip((c.name for c in CONTROLS), ("ran", "opened", "started"), strict=True), ids=lambda v: str(v)
)
def test_the_watch_sees_what_a_careless_reader_does(name: str, sign: str, reports: dict[str, dict[str, Any]]) -> None:
    assert reports[name][sign]


def laughing_yaml(folder: Path) -> None:
    lines = ["b0: &b0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 10)}]" for i in range(1, 12)]
    (folder / "a.yaml").write_text("\n".join(lines))
    read_yaml(folder / "a.yaml")


def black_png(folder: Path) -> None:
    (folder / "a.png").write_bytes(zeros_png(14_000, 9_000))
    assert (folder / "a.png").stat().st_size < 4e6
    read_image(folder / "a.png")


def empty_npz(folder: Path) -> None:
    zeros_npz(folder / "a.npz", 600)
    read_trajectory(folder / "a.npz")


def wide_stl(folder: Path) -> None:
    corner = "vertex 1 2 3\n"
    facets = f"facet normal 0 0 1\nouter loop\n{corner * 3}endloop\nendfacet\n" * 2000
    (folder / "a.stl").write_text(f"solid a\n{facets}{facets.replace('1', '1' * 200_000, 1)}endsolid a\n")
    load_mesh(folder / "a.stl")


def crowded_xml(folder: Path) -> None:
    screen_xml(b"<robot>" + b"<a/>" * 4_000_000 + b"</robot>", "a.urdf")


def many_libraries(folder: Path) -> None:
    (folder / "a.mtl").write_text("newmtl x\nKd 1 0 0\n" * 50_000)
    (folder / "a.obj").write_text("mtllib a.mtl\n" * 100_000)
    load_mesh(folder / "a.obj")


BOMBS: dict[Callable[[Path], None], ErrorCode] = {
    laughing_yaml: ErrorCode.FILE_MALFORMED,
    black_png: ErrorCode.FILE_MALFORMED,
    empty_npz: ErrorCode.FILE_MALFORMED,
    wide_stl: ErrorCode.MESH_MALFORMED,
    crowded_xml: ErrorCode.URDF_UNSAFE,
    many_libraries: ErrorCode.MESH_MALFORMED,
}


@pytest.mark.parametrize("bomb", list(BOMBS), ids=lambda bomb: bomb.__name__)
def test_a_small_file_does_not_become_a_large_one(bomb: Callable[[Path], None], tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(KinemaError) as caught:
        bomb(tmp_path)
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert caught.value.code is BOMBS[bomb]
    assert grown_mb < 1024


def test_no_shell_sees_a_command(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    script = tmp_path / "echo.py"
    script.write_text("import json, sys\nopen(sys.argv[-1], 'w').write(json.dumps(sys.argv[1:-1]))\n")
    words = f"; touch {marker} && $(touch {marker}) | `touch {marker}` > {marker} {{images}} {{out}}"
    command = ExternalCommand(f"{sys.executable} {script} {words} {tmp_path / 'said'}", timeout_s=60)
    with pytest.raises(KinemaError, match="mesh"):
        command.reconstruct([], lambda done, total: None)
    said = json.loads((tmp_path / "said").read_text())
    assert ";" in said
    assert "&&" in said
    assert not marker.exists()


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a\rb", "a\udc80b", "x" * 200])
def test_odd_names_of_files_stay_on_their_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.csv"
    path.write_text("time,j\n0,nan\n")
    with pytest.raises(KinemaError) as caught:
        read_trajectory(path)
    text = str(caught.value)
    text.encode()
    assert not {"\x1b", "\r"} & set(text)
    assert len(text) < 4000
