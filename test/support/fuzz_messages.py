"""Seeded mutations of ROS messages of any type: from a valid message to one with an invalid field.

>>> mutator = Mutator(seed=1)
>>> broken, what = mutator.mutate(JointState(name=["joint1"], position=[0.1]))   # doctest: +SKIP
>>> what                                                                         # doctest: +SKIP
'position: nan'
"""

from __future__ import annotations

import math
import random
import re
from typing import Any

from rclpy.serialization import deserialize_message, serialize_message
from support.fuzz_pictures import damaged_picture

__all__ = ["GIANT", "Mutator", "copy_of", "leaves"]

GIANT = 1 << 20
"""Maximum message size in bytes: DDS keeps memory of the largest message for each queue slot."""

MANY = 4096
"""Elements of a list that is far too long."""

_INTEGERS = {f"{sign}int{bits}": (sign, bits) for sign in ("", "u") for bits in (8, 16, 32, 64)}
_FLOATS = {"float": 3.4028234663852886e38, "double": 1.7976931348623157e308}
_ARRAY = re.compile(r"^(?P<item>.+)\[(?P<size>\d+)\]$")
_SEQUENCE = re.compile(r"^sequence<(?P<item>[^,]+)(, *(?P<bound>\d+))?>$")

WORDS = (
    "",
    " ",
    "joint1",
    "joint2",
    "elbow",
    "left_finger_joint",
    "base_link",
    "camera_optical_frame",
    "map",
    "/",
    "rgb8",
    "bgr8",
    "mono16",
    "32FC1",
    "bayer_rggb8",
    "png",
    "jpeg",
    "plumb_bob",
    "equidistant",
    "canonical",
    "expert",
    "nan",
    "../../../etc/passwd",
    "file:///etc/passwd",
    "%s%s%n",
    "{0.__class__}",
    "<script>alert(1)</script>",
    "\x1b[2J\x07",
    "a\x00b",
    "\u202e\U0001f916\u0301",
    "'; DROP TABLE plans; --",
)


def copy_of(message: Any) -> Any:
    """Return a deep copy, as received."""
    return deserialize_message(serialize_message(message), type(message))


def leaves(message: Any) -> list[str]:
    """Return the paths of all fields that a mutation can reach: one per field of each nested type."""
    found: list[str] = []

    def visit(item: Any, path: str) -> None:
        for name, kind in item.get_fields_and_field_types().items():
            inner = _item_kind(kind)
            value = getattr(item, name)
            found.append(f"{path}{name}")
            if "/" not in (inner or kind):
                continue
            children = value if inner is not None else [value]
            for child in list(children)[:1]:
                visit(child, f"{path}{name}{'[]' if inner is not None else ''}.")

    visit(message, "")
    return found


def _item_kind(kind: str) -> str | None:
    """Return the element type of an array or sequence; None for other types."""
    found = _ARRAY.match(kind) or _SEQUENCE.match(kind)
    return found["item"] if found else None


class Mutator:
    """Makes invalid messages from valid ones; equal seed and calls give equal bytes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311

    def mutate(self, message: Any, most: int = 4) -> tuple[Any, str]:
        """Return a copy with one changed field, sometimes up to `most`, and a description of the changes."""
        chance = self.random
        if chance.random() < 0.02:
            return type(message)(), "everything empty"
        while True:
            made, what = self._changed(message, most)
            if len(serialize_message(made)) <= GIANT:
                return made, what

    def _changed(self, message: Any, most: int) -> tuple[Any, str]:
        chance = self.random
        made = copy_of(message)
        times = 1 if chance.random() < 0.8 else chance.randint(min(2, most), most)
        return made, "; ".join(self._once(made) for _ in range(times))

    def damage_bytes(self, message: Any) -> tuple[bytes, str]:
        """Return the serialised message with damage that no regular publisher could send."""
        chance = self.random
        data = bytearray(serialize_message(message))
        what = chance.choice(("cut", "flip", "length", "noise", "longer", "not utf-8"))
        if what == "cut":
            del data[chance.randrange(4, len(data) + 1) :]
        elif what == "flip":
            for _ in range(chance.randint(1, 8)):
                data[chance.randrange(4, len(data))] ^= 1 << chance.randrange(8)
        elif what == "length" and len(data) >= 12:
            # Every aligned word may be the length of a string or list.
            at = 4 + 4 * chance.randrange((len(data) - 4) // 4)
            data[at : at + 4] = chance.choice((2**32 - 1, 2**31, 2**31 - 1, 10**6, 2**24)).to_bytes(4, "little")
        elif what == "noise":
            data[4:] = chance.randbytes(chance.randint(0, 2048))
        elif what == "longer":
            data += chance.randbytes(chance.randint(1, 4096))
        else:
            for at in range(4, len(data)):
                if chr(data[at]).isalnum() and chance.random() < 0.3:
                    data[at] = chance.choice((0x80, 0xC0, 0xFF, 0xED))
        return bytes(data), f"bytes: {what}"

    def disorder(self, messages: list[Any]) -> list[Any]:
        """Return the messages in another order, some of them twice."""
        chance = self.random
        made = list(messages)
        for _ in range(max(1, len(made) // 20)):
            made.insert(chance.randrange(len(made) + 1), chance.choice(made))
        for _ in range(max(1, len(made) // 10)):
            i, j = chance.randrange(len(made)), chance.randrange(len(made))
            made[i], made[j] = made[j], made[i]
        return made[: len(messages)]

    # One place.

    def _once(self, message: Any, path: str = "") -> str:
        fields = message.get_fields_and_field_types()
        if not fields or set(fields) == {"structure_needs_at_least_one_member"}:
            return f"{path}: nothing to change"
        name = self.random.choice(list(fields))
        kind, value = fields[name], getattr(message, name)
        where = f"{path}{name}"
        if kind in ("builtin_interfaces/Time", "builtin_interfaces/Duration") and self.random.random() < 0.9:
            return self._stamp(value, where)
        array, sequence = _ARRAY.match(kind), _SEQUENCE.match(kind)
        if array or sequence:
            item = (array or sequence)["item"]  # type: ignore[index]
            if "/" in item and len(value) and self.random.random() < 0.6:
                index = self.random.randrange(len(value))
                return self._once(value[index], f"{where}[{index}].")
            changed, what = self._list(value, item, int(array["size"]) if array else None)
            setattr(message, name, changed)
            return f"{where}: {what}"
        if "/" in kind:
            return self._once(value, f"{where}.")
        changed = self._value(kind, value)
        setattr(message, name, changed)
        return f"{where}: {str(changed)[:40]!r}"

    def _stamp(self, stamp: Any, where: str) -> str:
        chance = self.random
        fits = 2**32 - 1
        sec, nanosec = chance.choice(
            (
                (0, 0),
                (1, 0),
                (2**31 - 1, 0),
                (2**31 - 1, fits),
                (-(2**31), 0),
                (-(2**31), fits),
                (-1, 999_999_999),
                (stamp.sec, fits),
                (stamp.sec, 10**9),
                *((stamp.sec + step, stamp.nanosec) for step in (-1, 1, -3, 3, -10, 10, -3600, 3600, 10**8)),
            )
        )
        stamp.sec, stamp.nanosec = max(-(2**31), min(sec, 2**31 - 1)), nanosec
        return f"{where}: {stamp.sec} s {stamp.nanosec} ns"

    def _value(self, kind: str, value: Any) -> Any:
        if kind == "boolean":
            return not value
        if kind == "octet":
            return bytes([self.random.randrange(256)])
        if kind in _FLOATS:
            return self._float(float(value), _FLOATS[kind])
        if kind in _INTEGERS:
            return self._integer(int(value), *_INTEGERS[kind])
        if kind.startswith(("string", "wstring")):
            return self._text(value)
        raise TypeError(f"no mutation for a field of type {kind}")

    def _float(self, value: float, largest: float) -> float:
        chance = self.random
        near = value if math.isfinite(value) else 1.0
        made = chance.choice(
            (
                math.nan,
                math.nan,
                math.inf,
                -math.inf,
                0.0,
                -0.0,
                5e-324,
                1e-300,
                largest,
                -largest,
                1e20,
                -near,
                near + 1.0,
                near * 1e6,
                near + 1e-9,
                chance.gauss(0.0, 3.0),
            )
        )
        return made if not math.isfinite(made) else max(-largest, min(made, largest))

    def _integer(self, value: int, sign: str, bits: int) -> int:
        low, high = (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        made = self.random.choice(
            (0, 1, 2, low, high, high - 1, high // 2, value + 1, value - 1, 2 * value, value ^ (1 << (bits // 2)), 100)
        )
        return max(low, min(made, high))

    def _text(self, value: str) -> str:
        chance = self.random
        ways = chance.random()
        if ways < 0.6:
            return chance.choice(WORDS)
        if ways < 0.65:
            return chance.choice("aß\u4e16") * chance.choice((1000, 65_536, GIANT // 4))
        if value and ways < 0.9:
            at = chance.randrange(len(value))
            return value[:at] + chance.choice(("", "0", "x", "\n", "é")) + value[at + 1 :]
        return value.upper() if chance.random() < 0.5 else value + value

    def _list(self, value: Any, item: str, size: int | None) -> tuple[Any, str]:
        chance = self.random
        if item == "uint8" and size is None:
            data = damaged_picture(chance, bytes(value), GIANT)
            made = type(value)("B") if hasattr(value, "typecode") else type(value)()
            made.frombytes(data)
            return made, f"{len(data)} bytes"
        items = list(value)
        if size is not None:
            return self._some(items, item), "one value"
        ways = ("empty", "shorter", "longer", "twice", "reversed", "shuffled", "one", "one", "one", "many")
        way = chance.choice(ways)
        if way == "empty":
            items = []
        elif way == "shorter":
            items = items[: chance.randrange(len(items) + 1)]
        elif way == "longer":
            items = items + [self._new(item, items) for _ in range(chance.randint(1, 5))]
        elif way == "twice":
            items = items + items[: chance.randint(0, len(items))]
        elif way == "reversed":
            items = items[::-1]
        elif way == "shuffled":
            chance.shuffle(items)
        elif way == "one":
            items = self._some(items, item)
        else:
            few = [self._new(item, items) for _ in range(8)]
            sizes = [len(serialize_message(one)) if "/" in item else len(str(one)) for one in few]
            weight = max(8, *sizes)
            count = min(MANY, max(GIANT // (2 * weight), 1))
            items = [few[i % 8] for i in range(count)]
            if item == "string":
                items = [f"{i}{text[:8]}" for i, text in enumerate(items)]
        return items, way

    def _some(self, items: list[Any], item: str) -> list[Any]:
        """Change one element, sometimes all of them to the same value."""
        if not items:
            return [self._new(item, items)] if "[" not in item else items
        made = list(items)
        index = self.random.randrange(len(made))
        made[index] = self._new(item, [made[index]])
        return [made[index]] * len(made) if self.random.random() < 0.1 else made

    def _new(self, item: str, like: list[Any]) -> Any:
        if "/" in item:
            if not like:
                package, name = item.split("/")
                return getattr(__import__(f"{package}.msg", fromlist=[name]), name)()
            made = copy_of(self.random.choice(like))
            self._once(made)
            return made
        plain = {"boolean": False, "string": "", "octet": b"\0"}
        return self._value(item, self.random.choice(like) if like else plain.get(item, 0))
