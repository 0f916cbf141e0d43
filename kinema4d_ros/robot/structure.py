"""The shape of URDF XML checked before it is read: typing errors refused, extensions set aside.

urdf_parser_py prints to stderr and goes on when it meets a tag it does not know, so `<orgin>` would
silently put a link in the wrong place. Here a tag or attribute that looks like a misspelt URDF one
is an error; anything else unknown (simulator and control extensions) is removed and logged.
"""

from __future__ import annotations

import difflib
import logging
from xml.etree.ElementTree import Element

from kinema4d_ros.core.errors import ErrorCode, RobotError

__all__ = ["prune_urdf"]

_LOG = logging.getLogger(__name__)

_CHILDREN: dict[str, set[str]] = {
    "robot": {"link", "joint", "material"},
    "link": {"inertial", "visual", "collision"},
    "inertial": {"origin", "mass", "inertia"},
    "visual": {"origin", "geometry", "material"},
    "collision": {"origin", "geometry"},
    "geometry": {"box", "cylinder", "sphere", "mesh"},
    "material": {"color", "texture"},
    "joint": {"origin", "axis", "parent", "child", "limit", "dynamics", "safety_controller", "calibration", "mimic"},
}
_REPEATABLE = {"link", "joint", "material", "visual", "collision"}
_ATTRIBUTES: dict[str, set[str]] = {
    "robot": {"name", "version"},
    "link": {"name"},
    "joint": {"name", "type"},
    "visual": {"name"},
    "collision": {"name"},
    "material": {"name"},
    "origin": {"xyz", "rpy"},
    "mass": {"value"},
    "inertia": {"ixx", "ixy", "ixz", "iyy", "iyz", "izz"},
    "box": {"size"},
    "cylinder": {"radius", "length"},
    "sphere": {"radius"},
    "mesh": {"filename", "scale"},
    "color": {"rgba"},
    "texture": {"filename"},
    "axis": {"xyz"},
    "parent": {"link"},
    "child": {"link"},
    "limit": {"lower", "upper", "effort", "velocity"},
    "dynamics": {"damping", "friction"},
    "safety_controller": {"k_velocity", "k_position", "soft_lower_limit", "soft_upper_limit"},
    "calibration": {"rising", "falling"},
    "mimic": {"joint", "multiplier", "offset"},
}
_KNOWN_EXTENSIONS = {"sensor", "gazebo", "transmission", "ros2_control", "contact"}
_MISSPELT_TAG = 0.75
_MISSPELT_ATTRIBUTE = 0.6
"""How like a URDF word a word must be; extensions add many tags but few attributes."""


def prune_urdf(root: Element, name: str) -> None:
    """Remove in place what is no part of a robot's geometry; refuse misspelt and repeated parts."""
    if root.tag != "robot":
        raise RobotError(f"{name} has the root element <{root.tag}>", expected="<robot name=...>")
    _prune(root, name, "robot")
    for material in root.findall("material"):
        if not len(material):
            _LOG.debug("%s: material '%s' has neither colour nor texture", name, material.get("name"))
            root.remove(material)


def _prune(element: Element, name: str, where: str) -> None:
    for attribute in list(element.attrib):
        if attribute not in _ATTRIBUTES.get(element.tag, set()):
            missing = _ATTRIBUTES.get(element.tag, set()) - set(element.attrib)
            _refuse_misspelt(attribute, missing, _MISSPELT_ATTRIBUTE, name, where)
            _LOG.debug("%s: attribute %s of %s is not used", name, attribute, where)
            del element.attrib[attribute]
    seen: set[str] = set()
    for child in list(element):
        tag = child.tag if isinstance(child.tag, str) else ""
        allowed = _CHILDREN.get(element.tag, set())
        if tag not in allowed:
            if element.tag == "geometry":
                raise RobotError(
                    f"{name}: {where} has the shape <{tag}>",
                    expected="mesh, box, cylinder or sphere",
                    hint="replace it by one of these, or by a mesh",
                    code=ErrorCode.URDF_UNSUPPORTED,
                )
            if tag not in _KNOWN_EXTENSIONS:
                _refuse_misspelt(tag, allowed, _MISSPELT_TAG, name, where)
            _LOG.debug("%s: <%s> in %s is not used", name, tag, where)
            element.remove(child)
            continue
        if tag in seen and tag not in _REPEATABLE:
            raise RobotError(f"{name}: {where} has <{tag}> twice", expected=f"at most one <{tag}>")
        seen.add(tag)
        label = f"<{tag} name='{child.get('name')}'>" if child.get("name") else f"{where}/<{tag}>"
        _prune(child, name, label)


def _refuse_misspelt(word: str, allowed: set[str], likeness: float, name: str, where: str) -> None:
    match = difflib.get_close_matches(word, sorted(allowed), n=1, cutoff=likeness)
    if match:
        raise RobotError(
            f"{name}: '{word}' in {where} is not a part of URDF",
            expected=f"'{match[0]}'",
            hint="correct the spelling; it would be ignored otherwise",
        )
