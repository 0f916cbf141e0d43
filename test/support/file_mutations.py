"""Seeded file mutations: of bytes, of text and of the content of JSON, YAML, XML and binary containers.

>>> import random
>>> damaged, what = mutate(b'{"a": 1}', "x.json", random.Random(3))

Every mutation depends only on the random generator, so a failed case can be reproduced from its number.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import yaml
from support.container_mutations import CONTAINERS

__all__ = ["TEXT_SUFFIXES", "mutate"]

Mutation = Callable[[bytes, random.Random], bytes]

TEXT_SUFFIXES = [
    ".json",
    ".jsonl",
    ".yaml",
    ".urdf",
    ".xacro",
    ".srdf",
    ".xml",
    ".dae",
    ".obj",
    ".mtl",
    ".csv",
    ".txt",
    ".stl",
    ".calib",
    ".index.json",
]
NUMBERS = (
    *("nan", "-nan", ".nan", "NaN", "inf", "-inf", ".inf", "Infinity", "1e308", "-1e308", "1e400", "5e-324", "-0.0"),
    *("0", "-1", "1", "2147483648", "4294967295", "-9223372036854775809", "18446744073709551616", "9" * 400),
    *("0x" + "f" * 5000, "1_0", "1e-05", "0o17", "09", "1.2.3", "1,5", "", "x", "true", "null", "٣", "½"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, 0.5, -0.5, 1e308, 5e-324),
    *(
        float("nan"),
        float("inf"),
        float("-inf"),
        "",
        "x",
        "nan",
        "../../etc/passwd",
        "/dev/zero",
        "a\nb",
        "\0",
        "\ud800",
    ),
    *("x" * 5000, [], {}, [[]], [None], [1, [2]], {"x": {}}, {"": ""}, [0] * 2000, [[0, 0, 0]] * 3, ["x"] * 3),
)
WORDS = re.compile(rb"[A-Za-z_][A-Za-z0-9_.:/-]*")
NUMBER = re.compile(rb"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")


def mutate(data: bytes, name: str, rng: random.Random) -> tuple[bytes, str]:
    """Return damaged contents of the file `name`, and a description of the damage."""
    suffix = "." + name.rsplit(".", 1)[-1]
    choices: list[tuple[str, Mutation, int]] = [(n, m, 1) for n, m in BYTES.items()]
    if suffix in TEXT_SUFFIXES and not data[:80].count(b"\0"):
        choices += [(n, m, 3) for n, m in TEXT.items()]
    if suffix in INSIDE:
        choices.append((f"inside {suffix}", INSIDE[suffix], 40))
    what, mutation, _ = rng.choices(choices, [weight for *_, weight in choices])[0]
    return mutation(data, rng), what


def _place(data: bytes, rng: random.Random) -> int:
    return rng.randrange(len(data) + 1)


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: _place(data, rng)]


def _flip(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    begin = _place(data, rng)
    return begin, min(len(data), begin + rng.choice((1, 2, 4, 8, 64, 512, 5000)))


def _overwrite(data: bytes, rng: random.Random) -> bytes:
    begin, end = _span(data, rng)
    return data[:begin] + rng.choice((b"\0", b"\xff", b"\x7f", b" ")) * (end - begin) + data[end:]


def _swap(data: bytes, rng: random.Random) -> bytes:
    a, b, c, d = sorted(_place(data, rng) for _ in range(4))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    begin, end = _span(data, rng)
    return data[:end] + data[begin:end] * rng.choice((1, 2, 100)) + data[end:]


def _delete(data: bytes, rng: random.Random) -> bytes:
    begin, end = _span(data, rng)
    return data[:begin] + data[end:]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.randbytes(rng.choice((1, 4, 100, 4096))) + data[at:]


def _garbage(data: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((1, 3, 16, 100, 1000, 20000)))


def _huge_field(data: bytes, rng: random.Random) -> bytes:
    size = rng.choice((2, 4, 8))
    value = rng.choice((2 ** (8 * size) - 1, 2 ** (8 * size - 1) - 1, 2 ** (8 * size - 1), 60_000, 0))
    at = _place(data[: rng.choice((64, 512, len(data) or 1))], rng)
    return data[:at] + value.to_bytes(size, rng.choice(("little", "big"))) + data[at + size :]


BYTES: dict[str, Mutation] = {
    "cut off": _cut,
    "bits flipped": _flip,
    "overwritten": _overwrite,
    "parts swapped": _swap,
    "part repeated": _repeat,
    "part deleted": _delete,
    "garbage inserted": _insert,
    "all garbage": _garbage,
    "a huge field": _huge_field,
    "empty": lambda data, rng: b"",
    "a tail": lambda data, rng: data + rng.choice((b"\0" * 700, b"x", data, b"\n")),
}


def _token(pattern: re.Pattern[bytes], data: bytes, rng: random.Random, put: bytes) -> bytes:
    found = list(pattern.finditer(data))
    if not found:
        return data + put
    one = rng.choice(found)
    return data[: one.start()] + put + data[one.end() :]


def _number(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 3))):
        data = _token(NUMBER, data, rng, rng.choice(NUMBERS).encode())
    return data


def _word(data: bytes, rng: random.Random) -> bytes:
    words = WORDS.findall(data) or [b"x"]
    put = rng.choice(
        (rng.choice(words), b"", rng.choice(words) + b"x", b"w" * 3000, "ä".encode("latin-1"), b"__class__")
    )
    return _token(WORDS, data, rng, put)


def _line(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    way = rng.randrange(4)
    if way == 0:
        del lines[at]
    elif way == 1:
        lines.insert(at, rng.choice(lines))
    elif way == 2:
        other = rng.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at] = lines[at] * rng.choice((2, 300))
    return b"\n".join(lines)


def _sign(data: bytes, rng: random.Random) -> bytes:
    signs = b"{}[]<>\"'&:,;#%@|*!-?/\\=()\t\r\n\0\x0b\x0c\x85"
    at = _place(data, rng)
    return data[:at] + bytes([rng.choice(signs)]) + data[at + rng.randrange(2) :]


def _encoded(data: bytes, rng: random.Random) -> bytes:
    text = data.decode("utf-8", "replace")
    codec = rng.choice(("utf-16", "utf-32", "utf-8-sig", "utf-16-be", "utf-7", "cp037"))
    return text.encode(codec, "replace")


def _nested(data: bytes, rng: random.Random) -> bytes:
    depth = rng.choice((50, 1000, 100_000))
    one, other = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"<a>", b"</a>"), (b"- ", b""), (b"(", b")")))
    at = rng.choice((0, _place(data, rng)))
    return data[:at] + one * depth + other * rng.choice((depth, 0)) + data[at:]


def _long(data: bytes, rng: random.Random) -> bytes:
    return _token(rng.choice((WORDS, NUMBER)), data, rng, rng.choice((b"a", b"1", b" ", b"-")) * 300_000)


TEXT: dict[str, Mutation] = {
    "another number": _number,
    "another word": _word,
    "lines": _line,
    "a sign": _sign,
    "another encoding": _encoded,
    "deep nesting": _nested,
    "a long word": _long,
}


def change(document: Any, rng: random.Random) -> Any:
    """Return the document with one to three values changed, at any depth of lists and mappings."""
    for _ in range(rng.choice((1, 1, 1, 3))):
        document = _change(document, rng)
    return document


def _change(node: Any, rng: random.Random) -> Any:
    if not isinstance(node, dict | list) or not node or rng.random() < 0.05:
        return rng.choice(VALUES)
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    key = rng.choice(keys)
    out = dict(node) if isinstance(node, dict) else list(node)
    inner = node[key]
    way = rng.random()
    if isinstance(inner, dict | list) and inner and way < 0.7:
        out[key] = _change(inner, rng)
    elif way < 0.8:
        out[key] = rng.choice(VALUES)
    elif way < 0.88:
        del out[key]
    elif way < 0.94:
        out[key] = node[rng.choice(keys)]
    elif isinstance(out, dict):
        out[rng.choice(("", "x", f"{key}x", "__class__", "..", "a/b"))] = inner
    else:
        out.insert(key, inner)
    return out


def _json(data: bytes, rng: random.Random) -> bytes:
    text = json.dumps(change(json.loads(data), rng))
    return text.encode("utf-8", "surrogatepass")


def _jsonl(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = _json(lines[at], rng)
    return b"\n".join(lines) + b"\n"


def _alias_bomb(levels: int = 9) -> str:
    lines = ["bomb0: &b0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"bomb{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def _yaml(data: bytes, rng: random.Random) -> bytes:
    document = yaml.safe_load(data)
    way = rng.random()
    if way < 0.08 and isinstance(document, dict):
        key = rng.choice(list(document))
        rest = yaml.safe_dump({k: v for k, v in document.items() if k != key})
        return f"{_alias_bomb()}{rest}{key}: *b8\n".encode()
    if way < 0.12:
        loop = rng.choice(("&a [*a]", "&a {x: *a}", "{<<: *a}"))
        return data + f"\nloop: {loop}\n".encode()
    if way < 0.2:
        tag = rng.choice(
            ("!!python/object/apply:os.system [true]", "!!binary aaa", "!!set {a, b}", "!!timestamp 9999-99-99")
        )
        return _token(NUMBER, data, rng, tag.encode())
    if way < 0.26 and isinstance(document, dict):
        key = rng.choice(list(document))
        return data + b"\n" + yaml.safe_dump({key: rng.choice((document[key], 1, "x"))}).encode()
    try:
        return yaml.safe_dump(change(document, rng), allow_unicode=True).encode("utf-8", "surrogatepass")
    except yaml.YAMLError:
        return data[: _place(data, rng)]


INSIDE: dict[str, Mutation] = {".json": _json, ".jsonl": _jsonl, ".yaml": _yaml, ".calib": _yaml, **CONTAINERS}
