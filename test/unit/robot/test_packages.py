from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from kinema4d_ros.core.errors import ErrorCode, MeshError
from kinema4d_ros.io.resources import share_directory
from kinema4d_ros.robot.packages import package_roots, resolve_mesh, urdf_root


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """Create work/arm_description/{package.xml, urdf/arm.urdf, meshes/a.stl} and work/secret.stl."""
    package = tmp_path / "work" / "arm_description"
    for folder in ("urdf", "meshes"):
        (package / folder).mkdir(parents=True)
    (package / "package.xml").write_text("<package format='3'><name>arm_description</name></package>")
    (package / "urdf" / "arm.urdf").write_text("<robot name='arm'/>")
    (package / "meshes" / "a.stl").write_bytes(b"mesh")
    (package.parent / "secret.stl").write_bytes(b"secret")
    return package


def code_of(uri: str, urdf: Path) -> ErrorCode:
    with pytest.raises(MeshError) as caught:
        resolve_mesh(uri, urdf)
    assert uri in str(caught.value) or repr(uri) in str(caught.value)
    return caught.value.code


def test_own_package() -> None:
    urdf = share_directory() / "urdf" / "yam.urdf"
    file = resolve_mesh("package://kinema4d_ros/urdf/yam.urdf", urdf)
    assert file.path == urdf
    assert file.root == share_directory()


def test_python_package_is_found_without_being_imported(layout: Path) -> None:
    before = set(sys.modules)
    file = resolve_mesh("package://i2rt/robot_models/arm/yam/v1/assets/base.stl", layout / "urdf" / "arm.urdf")
    assert file.path.is_file()
    assert file.root.name == "i2rt"
    assert not {name for name in set(sys.modules) - before if name.startswith("i2rt")}


def test_ament_prefix(layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = tmp_path / "prefix" / "share" / "other_arm" / "meshes" / "b.stl"
    mesh.parent.mkdir(parents=True)
    mesh.write_bytes(b"mesh")
    monkeypatch.setenv("AMENT_PREFIX_PATH", f"{tmp_path / 'nothing'}:{tmp_path / 'prefix'}")
    assert resolve_mesh("package://other_arm/meshes/b.stl", layout / "urdf" / "arm.urdf").path == mesh


def test_folder_above_the_urdf(layout: Path) -> None:
    file = resolve_mesh("package://arm_description/meshes/a.stl", layout / "urdf" / "arm.urdf")
    assert file.path == layout / "meshes" / "a.stl"


@pytest.mark.parametrize("uri", ["../meshes/a.stl", "file://../meshes/a.stl", "file:../meshes/a.stl"])
def test_relative_paths_start_at_the_urdf(layout: Path, uri: str) -> None:
    file = resolve_mesh(uri, layout / "urdf" / "arm.urdf")
    assert file.path.resolve() == layout / "meshes" / "a.stl"
    assert file.root == layout


def test_absolute_file_uri_inside_the_package(layout: Path) -> None:
    mesh = layout / "meshes" / "with space.stl"
    mesh.write_bytes(b"mesh")
    assert "%20" in mesh.as_uri()
    assert resolve_mesh(mesh.as_uri(), layout / "urdf" / "arm.urdf").path == mesh


def test_absolute_file_uri_into_an_installed_package(layout: Path) -> None:
    spec = importlib.util.find_spec("i2rt")
    assert spec is not None
    assert spec.origin is not None
    mesh = Path(spec.origin).parent / "robot_models/arm/yam/v1/assets/base.stl"
    file = resolve_mesh(mesh.as_uri(), layout / "urdf" / "arm.urdf")
    assert file.root.name == "i2rt"


@pytest.mark.parametrize(
    "uri",
    [
        "../../secret.stl",
        "file://../../secret.stl",
        "../meshes/../../secret.stl",
        "file:///etc/hostname",
        "/etc/hostname",
        "file:///%65tc/hostname",
        "package://arm_description/../secret.stl",
        "package://arm_description//etc/hostname",
        "package://i2rt/../numpy/__init__.py",
        "package://../secret.stl",
        "package://./x.stl",
        "package://arm_description",
        "http://example.com/a.stl",
        "https://example.com/a.stl",
        "ftp://example.com/a.stl",
        "model://arm/a.stl",
    ],
)
def test_paths_outside_the_package_are_refused(layout: Path, uri: str) -> None:
    assert code_of(uri, layout / "urdf" / "arm.urdf") is ErrorCode.MESH_UNSAFE_PATH


def test_links_out_of_the_package_are_refused(layout: Path) -> None:
    (layout / "meshes" / "link.stl").symlink_to(layout.parent / "secret.stl")
    (layout / "outside").symlink_to(layout.parent)
    urdf = layout / "urdf" / "arm.urdf"
    for uri in (
        "../meshes/link.stl",
        "../outside/secret.stl",
        "package://arm_description/meshes/link.stl",
        "package://arm_description/outside/secret.stl",
    ):
        assert code_of(uri, urdf) is ErrorCode.MESH_UNSAFE_PATH


def test_an_install_may_link_to_its_own_sources(layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share = tmp_path / "prefix" / "share" / "arm_description"
    share.mkdir(parents=True)
    (share / "a.stl").symlink_to(layout / "meshes" / "a.stl")
    (share / "b.stl").symlink_to(layout.parent / "secret.stl")
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path / "prefix"))
    elsewhere = tmp_path / "x.urdf"
    assert resolve_mesh("package://arm_description/a.stl", elsewhere).path == share / "a.stl"
    assert code_of("package://arm_description/b.stl", elsewhere) is ErrorCode.MESH_UNSAFE_PATH


@pytest.mark.parametrize("uri", ["x" * 5000, "package://arm_description/" + "y" * 5000, "../meshes/circle.stl"])
def test_names_that_the_file_system_refuses(layout: Path, uri: str) -> None:
    (layout / "meshes" / "circle.stl").symlink_to(layout / "meshes" / "circle.stl")
    with pytest.raises(MeshError) as caught:
        resolve_mesh(uri, layout / "urdf" / "arm.urdf")
    assert caught.value.code is ErrorCode.MESH_MISSING


@pytest.mark.parametrize("uri", ["", "  ", "meshes/\0.stl"])
def test_empty_uris(layout: Path, uri: str) -> None:
    assert code_of(uri, layout / "urdf" / "arm.urdf") is ErrorCode.MESH_MALFORMED


def test_errors_of_missing_files_list_the_searched_folders(layout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urdf = layout / "urdf" / "arm.urdf"
    with pytest.raises(MeshError, match=str(layout / "urdf" / "none.stl")) as relative:
        resolve_mesh("none.stl", urdf)
    with pytest.raises(MeshError, match=str(layout)) as package:
        resolve_mesh("package://arm_description/none.stl", urdf)
    with pytest.raises(MeshError, match=r"no package 'no_such_arm'.*install the package 'no_such_arm'") as unknown:
        resolve_mesh("package://no_such_arm/a.stl", urdf)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MeshError, match="pip install --no-deps dreamscale-i2rt") as vendor:
        resolve_mesh("package://i2rt/a.stl", urdf)
    for caught in (relative, package, unknown, vendor):
        assert caught.value.code is ErrorCode.MESH_MISSING


def test_a_folder_on_the_path_without_init_is_not_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "just_a_folder").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert package_roots("just_a_folder") == []
    assert package_roots("os.path") == []


def test_without_a_manifest_the_root_is_narrow(tmp_path: Path) -> None:
    plain, nested = tmp_path / "robot" / "x.urdf", tmp_path / "robot" / "urdf" / "x.urdf"
    nested.parent.mkdir(parents=True)
    assert urdf_root(plain) == tmp_path / "robot"
    assert urdf_root(nested) == tmp_path / "robot"
    (tmp_path / "robot" / "package.xml").write_text("<package/>")
    deep = tmp_path / "robot" / "a" / "b" / "x.urdf"
    deep.parent.mkdir(parents=True)
    assert urdf_root(deep) == tmp_path / "robot"
