"""Malicious files: each attack is a function that writes a file and the reader under attack.

`${MARKER}` is the file that a payload would create; the secret lies outside all folders that a reader may open.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import file_readers as core
from support import file_readers_model as model

__all__ = ["ATTACKS", "CONTROLS", "Attack", "Place", "secret_bytes", "zeros_npz", "zeros_png"]


@dataclass(frozen=True)
class Place:
    """Paths of an attack: its folder, the marker file of the payload, and the secret outside."""

    folder: Path
    marker: Path
    secret: Path

    @property
    def pickled(self) -> bytes:
        """Return a pickle that creates the marker when loaded."""
        return pickle.dumps(_Payload(str(self.marker)), protocol=2)


class _Payload:
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self.marker,)


@dataclass(frozen=True)
class Attack:
    """One attack; `codes` are the expected errors, empty if the file is read without harm."""

    name: str
    make: Callable[[Place], Path]
    read: Callable[[Path], Any]
    codes: tuple[str, ...]


def _pickle_over(make: Callable[[Path], Path], pattern: str, repair: Any = None) -> Callable[[Place], Path]:
    def attack(place: Place) -> Path:
        path = make(place.folder)
        for file in [path] if path.is_file() else sorted(path.rglob(pattern)):
            file.write_bytes(place.pickled)
        if repair is not None:
            repair(path)
        return path

    return attack


def _torch_pickle(make: Callable[[Path], Path], pattern: str) -> Callable[[Place], Path]:
    """Write a zip with the pickle inside, as torch.save does."""

    def attack(place: Place) -> Path:
        path = make(place.folder)
        for file in sorted(path.rglob(pattern)):
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("archive/data.pkl", place.pickled)
                archive.writestr("archive/version", "3\n")
                archive.writestr("archive/byteorder", "little")
        return path

    return attack


def _bin_only(place: Place) -> Path:
    path = model._bundle(place.folder)
    for file in path.rglob("*.safetensors"):
        file.with_name("diffusion_pytorch_model.bin").write_bytes(place.pickled)
        file.unlink()
    model._sign_bundle(path)
    return path


def _objects(make: Callable[[Path], Path], pattern: str = "*.npz") -> Callable[[Place], Path]:
    """Write an archive with pickled object arrays, and with a name that leads outside."""

    def attack(place: Place) -> Path:
        path = make(place.folder)
        (file,) = [path] if path.is_file() else sorted(path.rglob(pattern))
        header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
        header += b" " * (-(len(header) + 11) % 64) + b"\n"
        array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + place.pickled
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
        with zipfile.ZipFile(file, "w") as archive:
            for name in [*names, f"../../{place.marker.name}", str(place.marker)]:
                archive.writestr(name, array)
        return path

    return attack


def _tagged(make: Callable[[Path], Path], pattern: str) -> Callable[[Place], Path]:
    def attack(place: Place) -> Path:
        path = make(place.folder)
        for file in [path] if path.match(pattern) else sorted(path.parent.rglob(pattern)):
            file.write_text(f"{file.read_text()}\nevil: !!python/object/apply:os.mkdir ['{place.marker}']\n")
        return path

    return attack


def _robot(body: str, head: str = "") -> Callable[[Place], Path]:
    """Write a URDF of one link that contains `body`; {secret} and {name} are substituted."""

    def attack(place: Place) -> Path:
        (place.folder / "link.stl").symlink_to(place.secret)
        filled = body.replace("{secret}", str(place.secret)).replace("{name}", place.secret.name)
        text = f'{head.replace("{secret}", str(place.secret))}<robot name="r"><link name="a">{filled}</link></robot>'
        return core._write(place.folder, "urdf_own/r.urdf", text)

    return attack


def _mesh(uri: str) -> Callable[[Place], Path]:
    return _robot(f'<visual><geometry><mesh filename="{uri}"/></geometry></visual>')


def _xacro(body: str) -> Callable[[Place], Path]:
    def attack(place: Place) -> Path:
        filled = body.replace("{secret}", str(place.secret)).replace("{marker}", str(place.marker))
        head = '<robot name="r" xmlns:xacro="http://www.ros.org/wiki/xacro">'
        return core._write(place.folder, "own/r.xacro", f'{head}<link name="a"/>{filled}</robot>')

    return attack


def _obj(place: Place) -> Path:
    path = core._obj(place.folder)
    path.write_text(path.read_text().replace("mesh.mtl", f"../{place.secret.parent.name}/{place.secret.name}"))
    return path


def _texture(place: Place) -> Path:
    path = core._dae(place.folder)
    image = f'<library_images><image id="i"><init_from>file://{place.secret}</init_from></image></library_images>'
    path.write_text(path.read_text().replace("<library_effects>", f"{image}<library_effects>"))
    return path


def _glb(place: Place) -> Path:
    path = core._with_trimesh(".glb")(place.folder)
    data = path.read_bytes()
    (length,) = struct.unpack("<I", data[12:16])
    document = json.loads(data[20 : 20 + length])
    document["buffers"][0]["uri"] = f"../{place.secret.parent.name}/{place.secret.name}"
    document["images"] = [{"uri": str(place.secret)}]
    text = json.dumps(document).encode()
    text += b" " * (-len(text) % 4)
    body = struct.pack("<I", len(text)) + data[16:20] + text
    path.write_bytes(data[:8] + struct.pack("<I", 12 + len(body)) + body)
    return path


def _tar(kind: bytes, name: str) -> Callable[[Place], Path]:
    def attack(place: Place) -> Path:
        path = model._shard(place.folder)
        model._forget_index(path)
        with tarfile.open(path) as archive:
            members = [(m, archive.extractfile(m).read()) for m in archive.getmembers()]  # type: ignore[union-attr]
        evil = tarfile.TarInfo(name.replace("{marker}", str(place.marker)))
        evil.type, evil.linkname = kind, str(place.secret)
        with tarfile.open(path, "w") as archive:
            for member, data in members:
                archive.addfile(member, io.BytesIO(data))
            archive.addfile(evil)
        return path

    return attack


def _document(make: Callable[[Path], Path], file: str, change: Callable[[Any, Place], None]) -> Callable[[Place], Path]:
    def attack(place: Place) -> Path:
        path = make(place.folder)
        target = path / file if path.is_dir() else path
        document = json.loads(target.read_text())
        change(document, place)
        target.write_text(json.dumps(document))
        return path

    return attack


def _outside(place: Place) -> str:
    return f"../../{place.secret.parent.name}/{place.secret.name}"


def _manifest(document: Any, place: Place) -> None:
    document["files"][_outside(place)] = {"bytes": 1, "sha256": "0"}


def _processor(**step: str) -> Callable[[Any, Place], None]:
    def change(document: Any, place: Place) -> None:
        document["steps"] = [{key: value.replace("{outside}", _outside(place)) for key, value in step.items()}]

    return change


def _view(document: Any, place: Place) -> None:
    document[0]["name"] = _outside(place)


def _templates(document: Any, place: Place) -> None:
    document["data_path"] = document["video_path"] = str(place.secret)


def _extends(place: Place) -> Path:
    path = place.folder / "preset.yaml"
    path.write_text(f"extends: {place.secret.with_suffix('')}\n")
    return path


def _bag_elsewhere(place: Place) -> Path:
    import yaml

    path = model._bag("MCAP")(place.folder)
    document = yaml.safe_load((path / "metadata.yaml").read_text())
    information = document["rosbag2_bagfile_information"]
    information["relative_file_paths"] = [_outside(place)]
    for entry in information.get("files", []):
        entry["path"] = _outside(place)
    (path / "metadata.yaml").write_text(yaml.safe_dump(document))
    return path


def _anything(place: Place) -> Path:
    return core._write(place.folder, "a.txt", "a")


XXE = '<!DOCTYPE r [<!ENTITY x SYSTEM "file://{secret}">]>'
OUTER = '<!DOCTYPE r SYSTEM "file://{secret}">'
LAUGHS = (
    '<!DOCTYPE r [<!ENTITY a "' + "x" * 50 + '">' + "".join(
        f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ) + "]>"
)  # fmt: skip
ESCAPE = (
    "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == '_wrap_close'][0]"
    ".__init__.__globals__['mkdir']('{marker}')"
)
SAFE = ("URDF_UNSAFE",)
MESH = ("MESH_UNSAFE_PATH",)
BAD = ("FILE_MALFORMED", "FILE_UNSUPPORTED")

ATTACKS = (
    Attack("pickle as 4dnex .pt", _pickle_over(model._four_d, "*.pt"), model._load_four_d, BAD),
    Attack("torch pickle as 4dnex .pt", _torch_pickle(model._four_d, "*.pt"), model._load_four_d, BAD),
    Attack("pickle as official safetensors", _pickle_over(model._official, "*.safetensors"), model._load_official, BAD),
    Attack("pickle as model .bin", _bin_only, model.ModelBundle.from_pretrained, BAD),
    Attack(
        "pickle as model safetensors",
        _pickle_over(model._bundle, "*.safetensors", model._sign_bundle),
        model.ModelBundle.from_pretrained,
        BAD,
    ),
    Attack(
        "pickle to resume training from",
        _pickle_over(model._progress, "*.safetensors", model._sign_progress),
        model._resume,
        BAD,
    ),
    Attack("pickle as latents", _pickle_over(model._latents, "*.safetensors"), model._read_latents, BAD),
    Attack(
        "pickle as policy", _pickle_over(model._policy, "*.safetensors"), model._read_policy, ("POLICY_UNAVAILABLE",)
    ),
    Attack("pickle as lifter", _pickle_over(model._lifter, "*.safetensors"), model._load_lifter, BAD),
    Attack("pickle as metric weights", _pickle_over(model._metric_weights, "*.pt"), model._read_metric_weights, BAD),
    Attack(
        "torch pickle as metric weights", _torch_pickle(model._metric_weights, "*.pt"), model._read_metric_weights, BAD
    ),
    Attack("pickle as sam2 weights", _pickle_over(model._metric_weights, "*.pt"), model._sam2_pt, BAD),
    Attack("torch pickle as sam2 weights", _torch_pickle(model._metric_weights, "*.pt"), model._sam2_pt, BAD),
    Attack("pickle as plan", _pickle_over(core._trajectory(".npz"), "*"), core._read_trajectory, BAD),
    Attack("objects in a plan", _objects(core._trajectory(".npz")), core._read_trajectory, BAD),
    Attack("objects in a demonstration", _objects(core._demo), core._read_demo, BAD),
    Attack("objects in pointmaps", _objects(core._pointmaps(True)), core._load_pointmaps, BAD),
    Attack("tag in a camera file", _tagged(core._camera, "*.yaml"), core._calibrations, BAD),
    Attack("tag in extrinsics", _tagged(core._extrinsics, "*.yaml"), core._pose, BAD),
    Attack("tag in picked pairs", _tagged(core._yaml("pairs.yaml", core.PAIRS), "*.yaml"), core._pairs, BAD),
    Attack("tag in a robot's sidecar", _tagged(core._robot, "*.yaml"), core._load_robot, BAD),
    Attack(
        "tag in a preset", _tagged(model._copy("config/model/tiny.yaml", "p.yaml"), "*.yaml"), model.load_preset, BAD
    ),
    Attack(
        "tag in a training config",
        _tagged(model._copy("config/train/nano.yaml", "t.yaml"), "*.yaml"),
        model._train_config,
        BAD,
    ),
    Attack(
        "tag in a data config",
        _tagged(model._copy("config/data/nano.yaml", "d.yaml"), "*.yaml"),
        model._data_config,
        BAD,
    ),
    Attack("tag in a bag's metadata", _tagged(model._bag("MCAP"), "metadata.yaml"), model._read_trajectory, BAD),
    Attack("external entity in a URDF", _robot("&x;", XXE), core._load_robot, SAFE),
    Attack("external DTD of a URDF", _robot("", OUTER), core._load_robot, SAFE),
    Attack("billion laughs in a URDF", _robot("&i;", LAUGHS), core._load_robot, SAFE),
    Attack("mesh by ..", _mesh("../../outside/{name}"), core._load_robot, MESH),
    Attack("mesh by absolute path", _mesh("{secret}"), core._load_robot, MESH),
    Attack("mesh by file URL", _mesh("file://{secret}"), core._load_robot, MESH),
    Attack("mesh by encoded file URL", _mesh("file://%2e%2e/%2e%2e/outside/{name}"), core._load_robot, MESH),
    Attack("mesh by link", _mesh("../link.stl"), core._load_robot, MESH),
    Attack(
        "mesh by package and ..",
        _mesh("package://kinema4d_ros/../../../../../../../..{secret}"),
        core._load_robot,
        MESH,
    ),
    Attack("mesh by http", _mesh("http://127.0.0.1:9/{name}"), core._load_robot, MESH),
    Attack("material library outside", _obj, core._load_mesh, MESH),
    Attack("texture of a COLLADA file outside", _texture, core._load_mesh, ()),
    Attack("buffer of a GLB outside", _glb, core._surface, ("MESH_MALFORMED",)),
    Attack("xacro includes a file outside", _xacro('<xacro:include filename="{secret}"/>'), core._load_robot, SAFE),
    Attack("xacro loads YAML outside", _xacro("<link name=\"${load_yaml('{secret}')}\"/>"), core._load_robot, SAFE),
    Attack(
        "xacro makes a folder",
        _xacro(f'<link name="${{{ESCAPE}}}"/>'),
        core._load_robot,
        ("URDF_UNSAFE", "URDF_MALFORMED"),
    ),
    Attack(
        "xacro runs a command",
        _xacro("<link name=\"$(eval __import__('os').mkdir('{marker}'))\"/><link name=\"$(command touch {marker})\"/>"),
        core._load_robot,
        ("URDF_UNSAFE", "URDF_MALFORMED"),
    ),
    Attack("xacro takes for ever", _xacro('<link name="${9**9**9}"/>'), core._load_robot, ("URDF_UNSAFE",)),
    Attack("xacro takes all memory", _xacro("<link name=\"${'a' * 10**10}\"/>"), core._load_robot, ("URDF_MALFORMED",)),
    Attack("link in a shard", _tar(tarfile.SYMTYPE, "b.json"), model._read_shard, BAD),
    Attack("hard link in a shard", _tar(tarfile.LNKTYPE, "b.json"), model._read_shard, BAD),
    Attack("member of a shard outside", _tar(tarfile.REGTYPE, "{marker}"), model._read_shard, BAD),
    Attack("member of a shard by ..", _tar(tarfile.REGTYPE, "../../ran.json"), model._read_shard, BAD),
    Attack(
        "manifest outside", _document(model._bundle, "manifest.json", _manifest), model.ModelBundle.from_pretrained, BAD
    ),
    Attack("preset extends a file outside", _extends, model.load_preset, BAD),
    Attack(
        "LeRobot processor of a foreign class",
        _document(model._lerobot_policy, "policy_preprocessor.json", _processor(**{"class": "os.system"})),
        model._read_lerobot_policy,
        ("POLICY_UNAVAILABLE",),
    ),
    Attack(
        "LeRobot processor's state outside",
        _document(model._lerobot_policy, "policy_preprocessor.json", _processor(state_file="{outside}")),
        model._read_lerobot_policy,
        ("POLICY_UNAVAILABLE",),
    ),
    Attack(
        "LeRobot's path templates",
        _document(model._lerobot("v2.1"), "meta/info.json", _templates),
        model._read_trajectory,
        (),
    ),
    Attack("view's name outside", _document(core._views, "cameras.json", _view), core._load_views, ("IMAGE_INVALID",)),
    Attack("bag's file outside", _bag_elsewhere, model._read_trajectory, BAD),
)

CONTROLS = (
    Attack("control: a pickle is loaded", _pickle_over(model._metric_weights, "*.pt"), lambda p: _load(p), ()),
    Attack("control: the secret is read", _anything, lambda p: (p.parents[1] / "outside/secret.stl").read_bytes(), ()),
    Attack("control: a program is started", _anything, lambda p: os.system("true"), ()),  # noqa: S605
)
"""Control cases with a careless reader: the monitor must detect each of them."""


def _load(path: Path) -> Any:
    return pickle.loads((path / "rgb_imagenet.pt").read_bytes())  # noqa: S301


def secret_bytes() -> bytes:
    """Return a valid mesh, so that a reader that opened it would not fail."""
    return core._stl()


def zeros_png(width: int, height: int) -> bytes:
    """Return a decompression bomb with all pixels present, black."""
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packer = zlib.compressobj(1)
    rows = b"".join(packer.compress(bytes(1 + 3 * width)) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def zeros_npz(path: Path, megabytes: int) -> None:
    """Return an archive that unpacks to this many megabytes."""
    header = (
        f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({megabytes * 2**20},), }}".encode().ljust(117) + b"\n"
    )
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("positions.npy", "w", force_zip64=True) as member,
    ):
        member.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
        for _ in range(megabytes):
            member.write(bytes(2**20))
