"""The scan for secrets finds planted ones, and leaves ordinary sources alone."""

from __future__ import annotations

import importlib.util
import secrets
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "secrets_scan.py"


@pytest.fixture(scope="module")
def scan() -> ModuleType:
    spec = importlib.util.spec_from_file_location("secrets_scan", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Put together here, so that the scan does not find them in this file.
PLANTED = {
    "private key": "-----BEGIN " + "RSA PRIVATE KEY-----",
    "AWS key": "AKIA" + "IOSFODNN7EXAMPLE",
    "GitHub token": "ghp_" + "a1B2" * 9,
    "GitLab token": "glpat-" + "a1B2x" * 4,
    "Hugging Face token": "hf_" + "aB" * 17,
    "Slack token": "xoxb-" + "1234567890-abc",
    "Google key": "AIza" + "aB3-_" * 7,
    "OpenAI or Anthropic key": "sk-ant-" + "aB3x" * 10,
    "PyPI token": "pypi-" + "aB3x" * 15,
    "npm token": "npm_" + "aB3x" * 9,
    "W&B key": "WANDB_API_KEY" + "=" + "0f" * 20,
    "JSON web token": ".".join(("eyJ" + "hbGciOiJIUzI1", "eyJ" + "zdWIiOiIxMjM0", "SflKxwRJSMeKKF2QT4")),
    "password in an address": "https://" + "me:hunter2hunter2" + "@example.org/",
}


@pytest.mark.parametrize("kind", PLANTED)
def test_every_known_form_is_found(scan: ModuleType, kind: str) -> None:
    assert kind in scan.FORMS
    assert [k for _, k, _ in scan.findings(f"line\nx = {PLANTED[kind]!r}\n")] == [kind]


def test_every_form_has_a_plant(scan: ModuleType) -> None:
    assert set(scan.FORMS) == set(PLANTED)


@pytest.mark.parametrize("name", ["token", "API_KEY", "db_password", '"client_secret"', "authToken"])
@pytest.mark.parametrize("between", [" = ", ": ", "="])
def test_a_random_value_of_a_telling_name_is_found(scan: ModuleType, name: str, between: str) -> None:
    value = secrets.token_urlsafe(24)
    assert [(n, v) for n, _, v in scan.findings(f'{name}{between}"{value}"')] == [(1, value)]


@pytest.mark.parametrize(
    "line",
    [
        'token = os.environ.get("KINEMA4D_POLICY_TOKEN", "")',
        'headers = {"Authorization": f"Bearer {token}"}',
        "    --hash=sha256:00a39b57e4f0b73d3d5db5ce39740d9964e9266db47a017add3f1ba144514257",
        'token="aaaaaaaaaaaaaaaaaaaa"',
        "robot tokens 624 x 5120",
    ],
)
def test_ordinary_lines_are_left_alone(scan: ModuleType, line: str) -> None:
    assert list(scan.findings(line)) == []
