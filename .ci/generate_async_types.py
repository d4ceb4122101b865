"""Write the types of AsyncClient, nnclr_hub/client/async_client.pyi, from the methods of Client: `make generate`.

AsyncClient calls the methods of Client in threads (docs/decisions/0033), so that type checkers cannot see its methods.
With --check, fail if the file is older than the methods.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "nnclr_hub" / "client"
TARGET = FOLDER / "async_client.pyi"
# module: the classes whose methods are awaited, by the name of their asynchronous form
CLASSES = {
    "remote": {"RemoteCollection": "AsyncCollection", "RemoteStore": "AsyncStore"},
    "probes": {"RemoteProbes": "AsyncProbes"},
    "jobs": {"RemoteJobs": "AsyncJobs"},
    "client": {"Client": "AsyncClient"},
}
CLIENT = """
    store: AsyncStore
    probes: AsyncProbes
    jobs: AsyncJobs

    def __init__(self, url: str = ..., api_key: str | None = ..., timeout: float = ...) -> None: ...
    def collection(self, name: str) -> AsyncCollection: ...
    async def close(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exception: object) -> None: ...
"""


def generate() -> str:
    """Return the contents of the stub."""
    classes, sources, used = [], {"Self": "typing"}, {"Self"}
    for module, names in CLASSES.items():
        tree = ast.parse((FOLDER / f"{module}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                sources |= {alias.name: str(node.module) for alias in node.names}
            elif isinstance(node, ast.ClassDef | ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
                defined = (getattr(target, "id", getattr(target, "name", None)) for target in targets)
                sources |= {name: f"nnclr_hub.client.{module}" for name in defined if name}
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in names:
                methods = list(map(_awaited, filter(_is_awaited, node.body)))
                used |= {part.id for method in methods for part in ast.walk(method) if isinstance(part, ast.Name)}
                body = "\n".join(f"    {ast.unparse(method).replace(chr(10), ' ')}" for method in methods)
                parts = CLIENT if node.name == "Client" else "\n"
                classes.append(f"class {names[node.name]}:{parts}{body}")
    imports = sorted(f"from {sources[name]} import {name}" for name in used & sources.keys())
    head = "# Written by `make generate` from the methods of Client; do not edit.\n# ruff: noqa: I001\n"
    text = "\n".join([head, "import builtins", "import numpy as np", *imports, "", *classes, ""])
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def _is_awaited(node: ast.stmt) -> bool:
    """Return whether a statement is a public method that returns its result at once."""
    return (
        isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and node.name not in ("collection", "close")
        and not node.decorator_list
        and not _is_generator(node)
    )


def _is_generator(function: ast.FunctionDef) -> bool:
    """Return whether a function yields outside of the functions that it defines."""
    inner = [part for part in ast.walk(function) if isinstance(part, ast.FunctionDef) and part is not function]
    of_inner = {id(part) for one in inner for part in ast.walk(one)}
    return any(isinstance(part, ast.Yield | ast.YieldFrom) and id(part) not in of_inner for part in ast.walk(function))


class _Builtins(ast.NodeTransformer):
    """Name the type `list` in full, because some of the classes have a method of that name."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Attribute(ast.Name("builtins"), "list") if node.id == "list" else node


def _awaited(node: ast.stmt) -> ast.AsyncFunctionDef:
    """Return the signature of a method as a coroutine."""
    assert isinstance(node, ast.FunctionDef)
    unknown = ast.Constant(...)
    node.args.defaults = [unknown for _ in node.args.defaults]
    node.args.kw_defaults = [default and unknown for default in node.args.kw_defaults]
    stub = ast.AsyncFunctionDef(node.name, node.args, [ast.Expr(unknown)], [], node.returns, type_params=[])
    return ast.fix_missing_locations(_Builtins().visit(stub))


if __name__ == "__main__":
    text = generate()
    if "--check" in sys.argv and (not TARGET.exists() or TARGET.read_text() != text):
        sys.exit(f"{TARGET.name} does not have the methods of Client; run `make generate`.")
    TARGET.write_text(text)
