"""Find duplicated functions: equal bodies up to the names of their variables."""

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kinema4d_ros", "model/kinema4d_model", "tools", "launch")
MIN_NODES = 60
"""Smallest size in syntax tree nodes, about six lines; shorter functions are equal by chance."""

ALLOWED = {
    # (function, function): reason for the duplicate
}


class Plain(ast.NodeTransformer):
    """Transformer that renames local variables in order of appearance, so that only the structure is compared."""

    def __init__(self, local):
        self.local, self.names = local, {}

    def visit_Name(self, node):
        """Rename a variable of the function; keep names of the module."""
        if node.id in self.local:
            node.id = self.names.setdefault(node.id, f"v{len(self.names)}")
        return node

    def visit_arg(self, node):
        """Rename a parameter and drop its annotation."""
        node.arg, node.annotation = self.names.setdefault(node.arg, f"v{len(self.names)}"), None
        return node


def body_of(function):
    """Return the function's body as text without names, types and docstring; None when it is short."""
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
    """Compare all functions and print the duplicates."""
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
