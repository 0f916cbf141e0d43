"""Finds functions that say the same thing twice: equal bodies, whatever their variables are called."""

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kinema4d_ros", "model/kinema4d_model", "tools", "launch")
MIN_NODES = 60
"""Of the syntax tree, about six lines: shorter ones are alike by chance."""

ALLOWED = {
    # (function, function): why there are two
}


class Plain(ast.NodeTransformer):
    """Renames what is local in the order of its appearance, so that only the structure counts."""

    def __init__(self, local):
        self.local, self.names = local, {}

    def visit_Name(self, node):
        """A variable of the function, or something of the module."""
        if node.id in self.local:
            node.id = self.names.setdefault(node.id, f"v{len(self.names)}")
        return node

    def visit_arg(self, node):
        """A parameter; its type says nothing about what is done with it."""
        node.arg, node.annotation = self.names.setdefault(node.arg, f"v{len(self.names)}"), None
        return node


def body_of(function):
    """The function's body as text without names, types and docstring; None when it is short."""
    statements = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if sum(1 for s in statements for _ in ast.walk(s)) < MIN_NODES:
        return None
    local = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
    local |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    copy = ast.parse(ast.unparse(function)).body[0]
    plain = Plain(local).visit(copy)
    kept = plain.body[1:] if ast.get_docstring(copy) is not None else plain.body
    return "\n".join(ast.dump(s) for s in kept)


def main():
    """Look at all sources, and name the copies."""
    places, count = defaultdict(list), 0
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := body_of(node)) is not None:
                    count += 1
                    places[text].append(f"{path.relative_to(ROOT)}:{node.name}")
    copies = [found for found in places.values() if len(found) > 1 and tuple(sorted(found)) not in ALLOWED]
    for found in copies:
        print(" = ".join(found))
    print(f"{len(copies)} copies among {count} functions of {MIN_NODES} syntax nodes and more")
    return 1 if copies else 0


if __name__ == "__main__":
    sys.exit(main())
