"""Scan the checkout and the whole git history for secrets: known token formats, and random-looking values.

Values count when they are assigned to names like `token` or `password`. Exit code 1 with findings; `ALLOWED` lists
exceptions with their reasons.

    python tools/secrets_scan.py            the checkout's files and the whole history
"""

import math
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GIT = shutil.which("git") or "git"
MAX_BYTES = 2_000_000
"""Larger files are weights, images and meshes, not sources."""

FORMS = {
    "private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
    "AWS key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})\b",
    "GitLab token": r"\bglpat-[A-Za-z0-9_-]{20}\b",
    "Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}\b",
    "Slack token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    "Google key": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "OpenAI or Anthropic key": r"\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{32,}\b",
    "PyPI token": r"\bpypi-[A-Za-z0-9_-]{50,}\b",
    "npm token": r"\bnpm_[A-Za-z0-9]{36}\b",
    "W&B key": r"WANDB_API_KEY\s*[=:]\s*['\"]?[0-9a-f]{40}",
    "JSON web token": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    "password in an address": r"\b[a-z][a-z0-9+.-]*://[^\s/:@{}$<>\"']+:[^\s/@{}$<>\"']{3,}@[a-z0-9]",
}
NAMED = re.compile(
    r"(?i)\b[a-z0-9_.-]*(?:secret|passw(?:or)?d|passwd|token|api_?key|credential|auth)[a-z0-9_]*\b['\"]?\s*[:=]\s*"
    r"(?:f|b|r)?['\"]([^'\"\s]{12,})['\"]"
)
MIN_ENTROPY = 3.3
"""Bits per character; words and names are below, random letters and digits above."""

ALLOWED = (
    # (path, text that the finding contains, why it is not a secret)
    ("kinema4d_ros/policies/remote.py", "KINEMA4D_POLICY_TOKEN", "the name of an environment variable"),
    ("kinema4d_ros/web/server.py", "KINEMA4D_PAGE_TOKEN", "the name of an environment variable"),
)

_forms = {kind: re.compile(form) for kind, form in FORMS.items()}


def entropy(text):
    """Compute the entropy of a text in bits per character."""
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())


def findings(text):
    """Yield (line number, kind, value) of everything that looks like a secret."""
    for number, line in enumerate(text.splitlines(), 1):
        for kind, form in _forms.items():
            for found in form.finditer(line):
                yield number, kind, found[0]
        for found in NAMED.finditer(line):
            if entropy(found[1]) >= MIN_ENTROPY and not re.search(r"[{}<>$]|\.\.\.|^https?://", found[1]):
                yield number, "random value with a secret's name", found[1]


def git(*arguments, data=None):
    """Run git and return its output, bytes."""
    return subprocess.run([GIT, "-C", str(ROOT), *arguments], input=data, capture_output=True, check=True).stdout


def history():
    """Yield (path, text) of every version of every file in any commit; equal contents once."""
    named = {}
    for line in git("rev-list", "--objects", "--all").decode("utf-8", "replace").splitlines():
        name, _, path = line.partition(" ")
        if path:
            named.setdefault(name, path)
    sizes = git("cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)", data="\n".join(named).encode())
    wanted = [f[0] for f in map(str.split, sizes.decode().splitlines()) if f[1] == "blob" and int(f[2]) <= MAX_BYTES]
    stream = git("cat-file", "--batch", data="\n".join(wanted).encode())
    at = 0
    while at < len(stream):
        end = stream.index(b"\n", at)
        name, _, size = stream[at:end].decode().split()
        content = stream[end + 1 : end + 1 + int(size)]
        at = end + 2 + int(size)
        if b"\0" not in content[:8000]:
            yield named[name], content.decode("utf-8", "replace")


def checkout():
    """Yield (path, text) of the current files that git does not ignore."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0")
    for name in filter(None, listed):
        path = ROOT / name
        if path.is_file() and path.stat().st_size <= MAX_BYTES:
            content = path.read_bytes()
            if b"\0" not in content[:8000]:
                yield name, content.decode("utf-8", "replace")


def messages():
    """Yield (commit, text) of all commit messages."""
    for entry in git("log", "--all", "--format=%H%x00%B%x01").decode("utf-8", "replace").split("\1"):
        commit, _, text = entry.strip().partition("\0")
        if commit:
            yield f"message of {commit[:10]}", text


def main():
    """Scan and print the findings."""
    seen, bad, excused = Counter(), [], set()
    for source in (checkout, history, messages):
        for path, text in source():
            seen[source.__name__] += 1
            for number, kind, value in findings(text):
                reason = next((why for where, part, why in ALLOWED if path == where and part in value), None)
                if reason is None:
                    bad.append(f"{path}:{number}: {kind}: {value[:6]}... ({len(value)} characters)")
                else:
                    excused.add((path, value))
    for line in sorted(set(bad)):
        print(line)
    looked = ", ".join(f"{n} in the {where}" for where, n in seen.items())
    print(f"{len(set(bad))} findings; {len(excused)} allowed by the list; texts: {looked}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
