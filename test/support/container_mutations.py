"""Mutations inside binary containers, with sizes and checksums corrected so that the damage reaches the reader.

PNG chunks, NPZ members and array headers, tar headers, safetensors headers, GLB and msgpack documents.
"""

from __future__ import annotations

import io
import json
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["CONTAINERS"]


def _changed(document: Any, rng: random.Random) -> Any:
    from support.file_mutations import change  # that module lists the mutations of this one

    return change(document, rng)


def _npy_header(rng: random.Random) -> bytes:
    """Return an array header with invalid values."""
    descr = rng.choice(
        ("'<f8'", "'|O'", "'<U2'", "'<f4'", "'|V100000'", "[('a','<f8')]", "'<i8'", "'>f8'", "'<m8'", "'x'")
    )
    shape = rng.choice(
        ("()", "(3,)", "(-1,)", "(1000000000,)", "(2, 3)", "(0,)", "(4294967296, 4294967296)", "('a',)", "1")
    )
    text = f"{{'descr': {descr}, 'fortran_order': {rng.choice(('True', 'False', 'None'))}, 'shape': {shape}}}\n"
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"))
    length = struct.pack("<H" if version == b"\x01\x00" else "<I", len(text))
    return b"\x93NUMPY" + version + length + text.encode()


def _npy(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.6:
        return _npy_header(rng) + data[128:]
    at = rng.randrange(min(len(data), 128))
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def _npz(data: bytes, rng: random.Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name = rng.choice(list(members))
    way = rng.random()
    if way < 0.7:
        members[name] = _npy(members[name], rng)
    elif way < 0.8:
        del members[name]
    elif way < 0.9:
        members[rng.choice(("../out.npy", "/out.npy", "names.npy", name[:-4]))] = members.pop(name)
    else:
        members[name] = rng.randbytes(rng.choice((0, 5, 500)))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    raw = bytearray(out.getvalue())
    if rng.random() < 0.3:  # wrong sizes and methods in the directory
        at = raw.find(b"PK\x01\x02")
        field = rng.choice((10, 16, 20, 24, 28, 42))
        raw[at + field : at + field + 4] = struct.pack("<I", rng.choice((0, 1, 2**31, 2**32 - 1)))
    return bytes(raw)


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    found, at = [], 8
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        found.append((kind, data[at + 8 : at + 8 + length]))
        at += 12 + length
    return found


def _png(data: bytes, rng: random.Random) -> bytes:
    chunks = _chunks(data)
    at = rng.randrange(len(chunks))
    kind, content = chunks[at]
    way = rng.random()
    if way < 0.5:
        header = bytearray(chunks[0][1])
        if rng.random() < 0.6:
            header[:8] = struct.pack(">II", *(rng.choice((0, 1, 7, 20000, 65536, 2**31 - 1, 2**32 - 1)) for _ in "wh"))
        else:
            header[rng.randrange(8, 13)] = rng.randrange(256)
        chunks[0] = (b"IHDR", bytes(header))
    elif way < 0.6:
        del chunks[at]
    elif way < 0.7:
        chunks.insert(at, rng.choice(chunks))
    elif way < 0.8:
        chunks.insert(at, (rng.choice((b"PLTE", b"tRNS", b"acTL", b"iCCP", b"eXIf", b"zTXt")), rng.randbytes(40)))
    elif content:
        place = rng.randrange(len(content))
        chunks[at] = (kind, content[:place] + rng.randbytes(3) + content[place + 3 :])
    out = data[:8]
    for kind, content in chunks:
        out += struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    return out


def _tar(data: bytes, rng: random.Random) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = [(m, archive.extractfile(m).read()) for m in archive.getmembers() if m.isreg()]  # type: ignore[union-attr]
    at = rng.randrange(len(members))
    header, content = members[at]
    way = rng.randrange(7)
    if way == 0:
        header.name = rng.choice(
            ("../../out.json", "/out.json", "a/b.json", "nodot", "", "x" * 90 + ".json", "a\nb.json")
        )
    elif way == 1:
        header.type = rng.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE))
        header.linkname = rng.choice(("/etc/passwd", "../../../etc/passwd", "x"))
    elif way == 2:
        members.insert(rng.randrange(len(members)), members[at])
    elif way == 3:
        del members[at]
    elif way == 4 and header.name.endswith(".json"):
        content = json.dumps(_changed(json.loads(content), rng)).encode("utf-8", "surrogatepass")
    else:
        place = rng.randrange(len(content) or 1)
        content = content[:place] + rng.randbytes(rng.choice((1, 8, 64))) + content[place + rng.choice((0, 1, 8)) :]
    if way not in (2, 3):
        header.size = len(content)
        members[at] = (header, content)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for member, bytes_ in members:
            member.size = len(bytes_) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(bytes_))
    raw = out.getvalue()
    if rng.random() < 0.15:  # a wrong size with a valid checksum
        block = bytearray(raw[:512])
        block[124:136] = rng.choice((b"77777777777\0", b"00000000000\0", b"-0000000001\0", b"\x80" + b"\xff" * 11))
        block[148:156] = b" " * 8
        block[148:156] = f"{sum(block):06o}\0 ".encode()
        raw = bytes(block) + raw[512:]
    return raw


def _safetensors(data: bytes, rng: random.Random) -> bytes:
    (length,) = struct.unpack("<Q", data[:8])
    header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    text = json.dumps(_changed(header, rng)).encode("utf-8", "surrogatepass")
    claimed = rng.choice((len(text),) * 6 + (len(text) + 1, 2**63, 2**64 - 1, 0, 10**8))
    return struct.pack("<Q", claimed) + text + rest


def _glb(data: bytes, rng: random.Random) -> bytes:
    (length,) = struct.unpack("<I", data[12:16])
    document = json.loads(data[20 : 20 + length])
    text = json.dumps(_changed(document, rng)).encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % 4)
    body = struct.pack("<I", len(text)) + data[16:20] + text + data[20 + length :]
    return data[:8] + struct.pack("<I", 12 + len(body)) + body


def _msgpack(data: bytes, rng: random.Random) -> bytes:
    document = _changed(msgspec.msgpack.decode(data), rng)
    try:
        return msgspec.msgpack.encode(document)
    except (OverflowError, UnicodeEncodeError, TypeError):  # numbers that msgpack cannot encode
        return data[: rng.randrange(len(data))]


CONTAINERS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".png": _png,
    ".tar": _tar,
    ".safetensors": _safetensors,
    ".glb": _glb,
    ".msgpack": _msgpack,
}
