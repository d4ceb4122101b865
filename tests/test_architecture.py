"""The import law, read from the files: arrows run down, and never between programs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import nnclr_hub

ROOT = Path(__file__).parents[1]
PROGRAMS = ("training", "serving", "app")
# room of nnclr_hub -> the rooms it may import; every room may import those of GROUND
FLOORS = {
    "errors": set(),
    "cache": set(),
    "progress": set(),
    "read_ahead": set(),
    "method": set(),
    "hub": set(),
    "store": set(),
    "probe": set(),
    "encoder": {"hub"},
    "publish": {"hub", "encoder"},
    "torch_hub": {"hub", "encoder"},
    "workbench": {"hub", "store", "probe", "encoder"},
    "bulk": {"hub", "store", "encoder", "workbench"},
    "client": {"store", "probe", "encoder", "workbench"},
    "cli": {"hub", "store", "probe", "encoder", "publish", "workbench", "bulk", "client"},
}
GROUND = {"errors", "cache", "progress", "read_ahead"}


def imports(path: Path) -> set[str]:
    """Absolute modules that a file imports anywhere, `from x import y` as x and as x.y."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_import_the_library_and_never_one_another(program):
    """Their own modules they import relatively, for a wheel holds them under another name."""
    for path in (ROOT / program).rglob("*.py"):
        tops = {name.split(".")[0] for name in imports(path)}
        assert not tops & set(PROGRAMS), path


def test_the_library_imports_no_program():
    for path in (ROOT / "nnclr_hub").rglob("*.py"):
        names = imports(path)
        assert not {name.split(".")[0] for name in names} & set(PROGRAMS), path
        assert not [name for name in names if name.split(".")[1:2] and name.split(".")[1] in PROGRAMS], path


def test_inside_the_library_no_arrow_runs_up():
    for path in (ROOT / "nnclr_hub").rglob("*.py"):
        parts = path.relative_to(ROOT / "nnclr_hub").with_suffix("").parts
        room = parts[0]
        if room == "__init__":
            continue
        assert room in FLOORS, f"{path}: a room that the law does not know"
        used = {name.split(".")[1] for name in imports(path) if name.startswith("nnclr_hub.")} & set(FLOORS)
        assert used <= FLOORS[room] | GROUND | {room}, f"{path} imports {used - FLOORS[room] - GROUND - {room}}"


def test_only_backbones_builds_networks():
    for folder in ("nnclr_hub", *PROGRAMS):
        for path in (ROOT / folder).rglob("*.py"):
            calls = "create_model(" in path.read_text()
            assert (
                calls == (path.name == "backbones.py")
                or "timm.create_model(" in path.read_text().split('"""')[1]
                or (path.name == "snippets.py")
            ), path


def test_importing_the_library_is_light():
    """No torch, faiss, FastAPI or Gradio before a name is used; nor for the command line's help."""
    heavy = "{'torch', 'faiss', 'timm', 'fastapi', 'gradio', 'numpy', 'PIL'}"
    for statement in ("import nnclr_hub", "import nnclr_hub.cli.app"):
        code = f"import sys; {statement}; print(sorted({heavy} & set(sys.modules)))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        assert done.stdout.strip() == "[]", statement


def test_every_public_name_is_there():
    assert sorted(nnclr_hub.__all__) == sorted({"__version__", *nnclr_hub._HOME})
    for name in nnclr_hub.__all__:
        assert getattr(nnclr_hub, name) is not None
    with pytest.raises(AttributeError, match="has no attribute"):
        nnclr_hub.no_such_name  # noqa: B018


def test_gpu_tests_are_in_one_folder():
    """`pytest -m gpu` collects tests/gpu alone, so it runs with only the packages that training needs."""
    marked = {path for path in (ROOT / "tests").rglob("test_*.py") if ".mark." + "gpu" in path.read_text()}
    assert marked, "there are no GPU tests"
    assert {path.parent.name for path in marked} == {"gpu"}
