"""No module unpickles, because unpickling a file can run code."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("nnclr_hub", "serving", "app", "training", "benchmarks", "examples")
UNSAFE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
# the class of an error may be named
EXCUSED = {
    "training/checkpoint.py": {"pickle.UnpicklingError"},
    "nnclr_hub/publish/convert.py": {"pickle.UnpicklingError"},
    # messages of the pool and its own processes, which the pipes of multiprocessing pickle, too
    "nnclr_hub/images/pool.py": {"pickle.dumps", "pickle.loads", "pickle.HIGHEST_PROTOCOL"},
    # what a process of the pool returns, pickled there to count its bytes; the pool unpickles all results
    "nnclr_hub/workbench/item_file.py": {"pickle.dumps", "pickle.loads"},
}


def trees() -> dict[str, ast.Module]:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def keyword(call: ast.Call, name: str) -> object:
    return next(
        (one.value.value for one in call.keywords if one.arg == name and isinstance(one.value, ast.Constant)), None
    )


def unsafe(tree: ast.Module) -> set[str]:
    """Return what could unpickle in a module: imports, unsafe loads, and attributes of unpicklers."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in UNSAFE:
            found.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in UNSAFE:
            found.add(f"from {node.module}")
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if (
                called in ("torch.load", "torch.hub.load_state_dict_from_url")
                and keyword(node, "weights_only") is not True
            ):
                found.add(called)
            if called in ("np.load", "numpy.load") and keyword(node, "allow_pickle") is True:
                found.add(called)
            if called in ("yaml.load", "yaml.unsafe_load", "yaml.full_load", "eval", "exec"):
                found.add(called)
    return found


def test_unsafe_calls_are_found():
    for text in (
        "pickle.loads(x)",
        "torch.load(f)",
        "np.load(f, allow_pickle=True)",
        "eval('1')",
        "from dill import x",
    ):
        assert unsafe(ast.parse(text)), text
    assert not unsafe(ast.parse("torch.load(f, weights_only=True); np.load(f); model.eval()"))


def test_no_module_unpickles():
    found = {path: unsafe(tree) - EXCUSED.get(path, set()) for path, tree in trees().items()}
    assert {path: names for path, names in found.items() if names} == {}
    assert len(found) > 100
