"""External back-ends: their input, their output, and all their failures."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kinema4d_ros.acquisition.backends import ExternalCommand
from kinema4d_ros.acquisition.hull import ColouredMesh
from kinema4d_ros.acquisition.mesh_files import read_mesh_file, write_mesh_ply
from kinema4d_ros.acquisition.synthetic import orbit_cameras
from kinema4d_ros.acquisition.views import View
from kinema4d_ros.core.errors import AssetError, ErrorCode, MeshError

TETRAHEDRON = ColouredMesh(
    np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]),
    np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]),
    np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 9, 9]], np.uint8),
)


def views() -> list[View]:
    mask = np.zeros((48, 64), np.bool_)
    mask[10:30, 20:40] = True
    image = np.zeros((48, 64, 3), np.uint8)
    return [View(f"v{i}", 0, image, c, mask) for i, c in enumerate(orbit_cameras(3, width=64, height=48))]


def run(script: str, timeout_s: float = 60.0, **options: object) -> ColouredMesh:
    words = [sys.executable, "-c", script, "{images}", "{masks}", "{out}"]
    back_end = ExternalCommand(shlex.join(words), timeout_s, **options)  # type: ignore[arg-type]
    return back_end.reconstruct(views(), lambda done, total: None)


OBJ = "'v 0 0 0\\nv 1 0 0\\nv 0 1 0\\nv 0 0 1\\nf 1 3 2\\nf 1 2 4\\nf 1 4 3\\nf 2 3 4\\n'"
START = "import sys, os, pathlib; images, masks, out = map(pathlib.Path, sys.argv[1:4]);"


def test_images_and_masks_are_passed_and_the_mesh_is_read() -> None:
    script = START + (
        "names = sorted(p.name for p in images.iterdir());"
        "assert names == ['v0.png', 'v1.png', 'v2.png'] == sorted(p.name for p in masks.iterdir());"
        f"(out / 'deep').mkdir(); (out / 'deep' / 'mesh.obj').write_text({OBJ})"
    )
    mesh = run(script)
    assert len(mesh.faces) == 4
    assert mesh.vertices.max() == 1.0


@pytest.mark.parametrize("suffix", [".ply", ".glb", ".stl", ".obj"])
def test_formats(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"mesh{suffix}"
    if suffix == ".ply":
        write_mesh_ply(path, TETRAHEDRON, "a comment")
    else:
        import trimesh

        trimesh.Trimesh(TETRAHEDRON.vertices, TETRAHEDRON.faces, vertex_colors=TETRAHEDRON.rgb).export(path)
    mesh = read_mesh_file(path)
    assert len(mesh.faces) == 4
    assert sorted(map(tuple, np.round(mesh.vertices, 5).tolist())) == sorted(map(tuple, TETRAHEDRON.vertices.tolist()))
    if suffix in (".ply", ".glb"):
        assert mesh.rgb is not None
        assert sorted(map(tuple, mesh.rgb.tolist())) == sorted(map(tuple, TETRAHEDRON.rgb.tolist()))  # type: ignore[union-attr]


def test_failure_is_reported_with_the_last_output() -> None:
    with pytest.raises(AssetError, match=r"code 3; last output:\n  loading\n  no GPU here") as caught:
        run("import sys; print('loading'); print('no GPU here', file=sys.stderr); sys.exit(3)")
    assert caught.value.code == ErrorCode.GENERATOR_FAILED


@pytest.mark.full
def test_hanging_program_is_killed_with_its_children(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time; print('thinking', flush=True);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); time.sleep(600)"
    )
    with pytest.raises(AssetError, match=r"did not finish in 10 s; last output:\n  thinking") as caught:
        run(script, 10)
    assert caught.value.code == ErrorCode.GENERATOR_TIMEOUT
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        state = Path(f"/proc/{pid}/stat")
        # A killed orphan may remain a zombie until it is reaped.
        if not state.exists() or state.read_text().split(")")[1].split()[0] == "Z":
            break
        time.sleep(0.1)
    else:
        pytest.fail("the child outlived its parent")


def test_no_mesh_written() -> None:
    with pytest.raises(MeshError, match=r"wrote no mesh; its folder contains log\.txt") as caught:
        run(START + "(out / 'log.txt').write_text('fine')")
    assert caught.value.code == ErrorCode.MESH_MISSING
    with pytest.raises(MeshError, match="its folder contains nothing"):
        run("pass")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.obj", "v 0 0 0\\n"),
        ("a.ply", "ply\\nformat ascii 1.0\\nelement vertex 0\\nproperty float x\\nend_header\\n"),
        ("a.glb", "glTF nonsense"),
        ("a.obj", "v nan 0 0\\nv 1 0 0\\nv 0 1 0\\nf 1 2 3\\n"),
    ],
)
def test_empty_and_broken_meshes(name: str, content: str) -> None:
    with pytest.raises(MeshError) as caught:
        run(START + f"(out / {name!r}).write_text('{content}')")
    assert caught.value.code == ErrorCode.MESH_MALFORMED
    assert name in str(caught.value)


def test_symlinks_out_of_the_folder_are_ignored(tmp_path: Path) -> None:
    write_mesh_ply(tmp_path / "elsewhere.ply", TETRAHEDRON)
    with pytest.raises(MeshError, match="wrote no mesh"):
        run(START + f"os.symlink({str(tmp_path / 'elsewhere.ply')!r}, out / 'mesh.ply')")
    (tmp_path / "secret.mtl").write_text("newmtl a\nKd 1 0 0\n")
    with pytest.raises(MeshError) as caught:
        run(START + f"(out / 'm.obj').write_text('mtllib {tmp_path}/secret.mtl\\n' + {OBJ})")
    assert caught.value.code == ErrorCode.MESH_UNSAFE_PATH


def test_invalid_commands_are_refused() -> None:
    for template in ("", "make {out}", "make {images}", "make '{images} {out}"):
        with pytest.raises(AssetError, match="--command") as caught:
            ExternalCommand(template)
        assert caught.value.code == ErrorCode.ARGUMENT_INVALID
    with pytest.raises(AssetError, match="--timeout"):
        ExternalCommand("x {images} {out}", 0.0)
    with pytest.raises(AssetError, match="cannot be started"):
        ExternalCommand("/no/such/program {images} {out}").reconstruct(views(), lambda done, total: None)
