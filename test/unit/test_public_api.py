"""The public API: every exported name is there, and nothing heavy is imported before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kinema4d_ros


@pytest.mark.parametrize("name", kinema4d_ros.__all__)
def test_exported_names_resolve(name: str) -> None:
    value = getattr(kinema4d_ros, name)
    assert value is getattr(kinema4d_ros, name)
    assert value.__module__.startswith("kinema4d_ros.")
    assert name in dir(kinema4d_ros)


def test_unknown_names_list_the_api() -> None:
    with pytest.raises(AttributeError, match="it exports ErrorCode, Generator"):
        _ = kinema4d_ros.Robto  # type: ignore[attr-defined]


def test_the_function_is_not_hidden_by_its_folder() -> None:
    code = (
        "import sys, kinema4d_ros, kinema4d_ros.previews.checks\n"
        "from kinema4d_ros import preview\n"
        "assert callable(preview) and preview.__name__ == 'preview'\n"
        "assert kinema4d_ros.preview is preview\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = ("numpy", "cv2", "mujoco", "torch", "rclpy")
    code = f"import sys, kinema4d_ros; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
