"""Safe parsing of untrusted XML: entity bombs and external references are rejected first.

Every other XML reader of this package (urdf_parser_py, xacro, pycollada) gets a file only after it has passed
this check.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, ParseError, TreeBuilder

import defusedxml.ElementTree
from defusedxml.common import DefusedXmlException

from kinema4d_ros.core.errors import ErrorCode, RobotError

__all__ = ["MAX_XML_BYTES", "MAX_XML_DEPTH", "screen_xml"]

MAX_XML_BYTES = 256 * 2**20
"""Maximum file size: a robot's XML is kilobytes, a COLLADA mesh tens of megabytes."""

MAX_XML_DEPTH = 100
"""Maximum nesting: XML readers and writers recurse, and a robot's XML has seven levels."""


MAX_XML_ELEMENTS = 200_000
"""Maximum number of elements, checked while reading: a 4-byte element takes a hundred bytes of memory."""


class _TooMany(ValueError):  # noqa: N818 - it ends its sentence
    """Element count above the limit."""


class _CountingBuilder(TreeBuilder):
    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def start(self, tag: str, attributes: dict[str, str]) -> Element:
        """Count the element, then build it."""
        self._count += 1
        if self._count > MAX_XML_ELEMENTS:
            raise _TooMany
        return super().start(tag, attributes)


def screen_xml(data: bytes | str, name: str, *, malformed: type[RobotError] = RobotError) -> Element:
    """Return the root element of XML without DTD, entities or external references.

    Args:
        data: the file's contents.
        name: name of the file in errors.
        malformed: the error class for XML that does not parse, raised with its default code.
    """
    if len(data) > MAX_XML_BYTES:
        raise RobotError(
            f"{name} has {len(data)} bytes",
            expected=f"at most {MAX_XML_BYTES} bytes of XML",
            code=ErrorCode.URDF_UNSAFE,
        )
    try:
        parser = defusedxml.ElementTree.DefusedXMLParser(
            target=_CountingBuilder(), forbid_dtd=True, forbid_entities=True, forbid_external=True
        )
        parser.feed(data)
        root: Element = parser.close()
    except _TooMany:
        raise RobotError(
            f"{name} has more than {MAX_XML_ELEMENTS:,} elements",
            expected="a robot or a mesh",
            code=ErrorCode.URDF_UNSAFE,
        ) from None
    except DefusedXmlException as error:
        raise RobotError(
            f"{name} declares a DTD, an entity or an external reference ({type(error).__name__})",
            expected="plain XML without <!DOCTYPE> and <!ENTITY>",
            hint="remove the declaration: robots need none, and it can exhaust memory or read other files",
            code=ErrorCode.URDF_UNSAFE,
        ) from None
    except (ParseError, ValueError, LookupError) as error:
        raise malformed(
            f"{name} is not well-formed XML: {error}",
            expected="XML with matching tags",
            hint="open the file at that line",
        ) from None
    _require_shallow(root, name)
    return root


def _require_shallow(root: Element, name: str) -> None:
    level = [root]
    for _ in range(MAX_XML_DEPTH):
        level = [child for element in level for child in element]
        if not level:
            return
    raise RobotError(
        f"{name} nests elements more than {MAX_XML_DEPTH} deep",
        expected="a robot or a mesh",
        code=ErrorCode.URDF_UNSAFE,
    )
