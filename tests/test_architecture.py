"""Check the import rules of CONTRIBUTING.md: imports point down, never in a circle, and never between programs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import nnclr_hub

ROOT = Path(__file__).parents[1]
PROGRAMS = ("training", "serving", "app")
# modules that every package may import
GROUND = {
    "arguments",
    "errors",
    "cache",
    "cores",
    "csv_table",
    "file_replacement",
    "html_table",
    "json_text",
    "lazy_names",
    "missing_values",
}
GROUND |= {"plural", "progress", "read_ahead", "remote_files", "report_page", "table_rows", "terminal"}
# package of nnclr_hub -> the packages it may import
FLOORS: dict[str, set[str]] = {
    **{name: set() for name in GROUND},
    "method": set(),
    "hub": set(),
    "store": set(),
    "probe": set(),
    "inspect": {"store", "probe"},
    "images": {"hub"},
    "encoder": {"hub", "images"},
    "publish": {"hub", "images", "encoder"},
    "torch_hub": {"hub", "images", "encoder"},
    "workbench": {"hub", "store", "probe", "inspect", "images", "encoder"},
    "bulk": {"hub", "store", "images", "encoder", "workbench"},
    "client": {"store", "probe", "images", "encoder", "workbench"},
    "cli": {"hub", "store", "probe", "inspect", "images", "encoder", "publish", "workbench", "bulk", "client"},
}


def imports(path: Path) -> set[str]:
    """Return the absolute names that a file imports anywhere; `from x import y` counts as x and x.y."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_import_the_library_and_never_one_another(program):
    # A program imports its own modules relatively, because the wheel keeps it under another name.
    for path in (ROOT / program).rglob("*.py"):
        tops = {name.split(".")[0] for name in imports(path)}
        assert not tops & set(PROGRAMS), path


def test_the_library_imports_no_program():
    for path in (ROOT / "nnclr_hub").rglob("*.py"):
        names = imports(path)
        assert not {name.split(".")[0] for name in names} & set(PROGRAMS), path
        assert not [name for name in names if name.split(".")[1:2] and name.split(".")[1] in PROGRAMS], path


def test_imports_inside_the_library_point_down():
    for path in (ROOT / "nnclr_hub").rglob("*.py"):
        parts = path.relative_to(ROOT / "nnclr_hub").with_suffix("").parts
        room = parts[0]
        if room == "__init__":
            continue
        assert room in FLOORS, f"{path}: a package that FLOORS does not list"
        used = {name.split(".")[1] for name in imports(path) if name.startswith("nnclr_hub.")} & set(FLOORS)
        assert used <= FLOORS[room] | GROUND | {room}, f"{path} imports {used - FLOORS[room] - GROUND - {room}}"


def file_graph(room: str) -> dict[str, set[str]]:
    """Return which files of a room each of its files imports, lazily or for types too."""
    paths = {}
    for path in (ROOT / room).rglob("*.py"):
        paths[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        used: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0 or room != "nnclr_hub", f"{path}: a relative import"
                above = package[: len(package) + 1 - node.level] if node.level else []
                module = ".".join([*above, *filter(None, [node.module])])
                used |= {one if (one := f"{module}.{alias.name}") in paths else module for alias in node.names}
        graph[name] = used & set(paths) - {name}
    return graph


def shortest_path(graph: dict[str, set[str]], start: str, end: str) -> list[str]:
    """Return the files on the shortest path of at least one import from one file to another; [] if none exists."""
    before: dict[str, str] = {}
    waiting = [start]
    while waiting and end not in before:
        reached = [(name, other) for name in waiting for other in sorted(graph[name]) if other not in before]
        before.update({other: name for name, other in reversed(reached)})
        waiting = list(dict.fromkeys(other for _, other in reached))
    if end not in before:
        return []
    path = [end]
    while len(path) == 1 or path[-1] != start:
        path.append(before[path[-1]])
    return path[::-1]


@pytest.mark.parametrize("room", ["nnclr_hub", "training", "serving", "app"])
def test_files_of_a_room_import_one_another_in_no_circle(room):
    graph = file_graph(room)
    circles = [path for name in graph if (path := shortest_path(graph, name, name))]
    assert not circles, "a circle of imports: " + " -> ".join(min(circles, key=len))


def test_importing_the_library_is_light():
    # The help of the command line must not wait for torch either.
    heavy = "{'torch', 'faiss', 'timm', 'fastapi', 'gradio', 'numpy', 'PIL'}"
    for statement in ("import nnclr_hub", "import nnclr_hub.cli.app"):
        code = f"import sys; {statement}; print(sorted({heavy} & set(sys.modules)))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        assert done.stdout.strip() == "[]", statement


def test_every_public_name_can_be_imported():
    assert len(set(nnclr_hub.__all__)) == len(nnclr_hub.__all__)
    for name in nnclr_hub.__all__:
        assert getattr(nnclr_hub, name) is not None
    with pytest.raises(AttributeError):
        nnclr_hub.no_such_name  # noqa: B018


def test_gpu_tests_are_in_one_folder():
    """`pytest -m gpu` collects tests/gpu alone, so it runs with only the packages that training needs."""
    marked = {path for path in (ROOT / "tests").rglob("test_*.py") if ".mark." + "gpu" in path.read_text()}
    assert marked, "there are no GPU tests"
    assert {path.parent.name for path in marked} == {"gpu"}
