"""Safe parsing of YAML and JSON: limits on alias expansion, duplicate keys, nesting and integer size.

The result contains only mappings, lists, text, numbers, dates and booleans, and its size is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

import yaml

from kinema4d_ros.core.errors import FileFormatError

__all__ = ["parse_json", "parse_yaml"]

MAX_DEPTH = 100
"""Levels of nesting; the deepest document of this package has eight."""

MAX_NODES = 100_000
"""Values in a YAML document with aliases expanded; the longest of this package has a few hundred."""

MAX_INTEGER = 2**64
"""Exclusive bound of integers: larger ones are no valid count, size or seed and overflow later."""


class _Refused(ValueError):  # noqa: N818 - it ends its sentence
    """Reason why a syntactically valid document is rejected."""


# libyaml reads a megabyte of numbers in seconds; the Python loader takes most of a minute.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """YAML loader for plain data that checks the node graph before it constructs any object."""

    def get_single_node(self) -> Any:
        """Return the root node if its expanded size is within the limits."""
        node = super().get_single_node()
        if node is not None:
            self._measure(node, {}, ())
        return node

    def _measure(self, node: yaml.Node, known: dict[int, int], above: tuple[int, ...]) -> int:
        """Count the values below a node, with aliases expanded."""
        if id(node) in above:
            raise _Refused("a value contains itself")
        if len(above) >= MAX_DEPTH:
            raise _Refused(f"values are nested more than {MAX_DEPTH} deep")
        if id(node) in known:
            return known[id(node)]
        inside: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            inside = node.value
        elif isinstance(node, yaml.MappingNode):
            inside = [part for pair in node.value for part in pair]
        count = 1
        for part in inside:
            count += self._measure(part, known, (*above, id(node)))
            if count > MAX_NODES:
                raise _Refused(f"its aliases expand to more than {MAX_NODES:,} values")
        known[id(node)] = count
        return count

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Construct a mapping; reject duplicate keys, because the intended one is unknown."""
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise _Refused(f"the key '{twice[0][:60]}' appears twice in one mapping, line {node.start_mark.line + 1}")
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_bounded_int(self, node: Any) -> int:
        """Construct an integer within `MAX_INTEGER`."""
        return _bounded(int(self.construct_yaml_int(node)))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_bounded_int)


def _bounded(number: int) -> int:
    if not -MAX_INTEGER < number < MAX_INTEGER:
        raise _Refused(f"a whole number of {number.bit_length()} bits")
    return number


def _bounded_text(digits: str) -> int:
    if len(digits) > 40:
        raise _Refused(f"a whole number of {len(digits)} digits")
    return _bounded(int(digits))


def parse_yaml(data: bytes, name: object) -> Any:
    """Parse a YAML document; `name` is used in errors."""
    try:
        text = data.decode("utf-8")
        _require_small(text)
        # The loader is a stricter SafeLoader.
        return yaml.load(text, Loader=_Loader)  # noqa: S506  # nosec B506
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, AttributeError, LookupError) as error:
        raise _unusable(name, "YAML", error, "a UTF-8 text file of plain YAML") from None


def _require_small(text: str) -> None:
    """Reject excessive depth and length in the event stream: later stages recurse and are slow."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Base)):
        if count > 2 * MAX_NODES:
            raise _Refused(f"it has more than {MAX_NODES:,} values")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise _Refused(f"values are nested more than {MAX_DEPTH} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def parse_json(data: bytes, name: object) -> Any:
    """Parse a JSON document; `name` is used in errors."""
    try:
        document = json.loads(data.decode("utf-8"), parse_int=_bounded_text)
        if b"\\ud" in data or b"\\uD" in data:
            json.dumps(document, ensure_ascii=False).encode("utf-8")  # lone surrogates cannot be encoded
        _require_shallow(document)
    except (ValueError, RecursionError) as error:
        raise _unusable(name, "JSON", error, "a complete JSON file in UTF-8") from None
    return document


def _require_shallow(document: Any) -> None:
    level = [document]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise _Refused(f"values are nested more than {MAX_DEPTH} deep")


def _unusable(name: object, kind: str, error: Exception, expected: str) -> FileFormatError:
    detail = " ".join(str(error).split())[:300] or type(error).__name__
    return FileFormatError(f"{name} is not {kind}: {detail}", expected=expected)
