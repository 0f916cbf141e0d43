"""Stand-in: i2rt imports it for command lines that the tests do not run."""

from types import SimpleNamespace

conf = SimpleNamespace(Positional=None)
