"""CPU seconds and memory of each verb from the start of the process to its end, and the size of each extra.

    python benchmarks/startup.py                   # with this Python: torch, the exported network, and without torch
    python benchmarks/startup.py --installs EXTRA...    # megabytes and packages of each; "base" for none

The baseline is `--backend torch`, which imports torch and timm as every start did before networks were exported. The
modes take turns. "ready" is a server from its start until /readyz answers 200. Verbs without `--backend` have one row.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import make_images
from server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[1]
BLOCKED = ("torch", "torchvision", "timm", "matplotlib")  # in an installation without torch
WITHOUT = f"import sys; [sys.modules.__setitem__(name, None) for name in {BLOCKED}]; "
MAIN = "from nnclr_hub.cli import main; main()"


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--installs", nargs="+", help="extras to install into new environments instead")
    chosen = arguments.parse_args()
    if chosen.installs:
        installs(chosen.installs)
    else:
        with tempfile.TemporaryDirectory() as folder:
            verbs(Path(folder), chosen.rounds)


def verbs(folder: Path, rounds: int) -> None:
    """Print the table of verbs; a first round, which is not counted, fills the caches."""
    images = make_images(folder / "images", 100, (640, 480))
    query, place = str(next(images.rglob("*.jpg"))), ["--collection", "photos", "--store", str(folder / "store")]
    environment = os.environ | {"NNCLR_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    search = ["search", query, *place]
    modes = {
        "--backend torch": (MAIN, ["--backend", "torch"]),
        "auto": (MAIN, []),
        "without torch": (WITHOUT + MAIN, []),
    }
    commands = {
        "embed": lambda more: run(more[0], ["embed", str(images), *more[1]], environment),
        "index": lambda more: run(more[0], ["index", str(images), *place, *more[1]], environment),
        "search": lambda more: run(more[0], [*search, *more[1]], environment),
        "serve, ready": lambda more: ready(more[0], folder, more[1]),
    }
    print("| verb | mode | CPU seconds | of `--backend torch` | MB |\n|---|---|---|---|---|")
    for verb, command in commands.items():
        taken: dict[str, list[tuple[float, float]]] = {mode: [] for mode in modes}
        for number in range(rounds + 1):
            for mode, how in modes.items():
                if verb == "index":
                    shutil.rmtree(folder / "store", ignore_errors=True)
                measured = command(how)
                if number:
                    taken[mode].append(measured)
        base = [seconds for seconds, _ in taken["--backend torch"]]
        for mode, results in taken.items():
            seconds, memory = (statistics.median(column) for column in zip(*results, strict=True))
            ratio = statistics.median(ours / other for (ours, _), other in zip(results, base, strict=True))
            print(f"| {verb} | {mode} | {seconds:.2f} | {ratio:.2f} | {memory:.0f} |", flush=True)
    for words in (["--help"], ["models"], ["store", "list", *place[2:]]):
        results = [run(MAIN, words, environment) for _ in range(rounds + 1)][1:]
        seconds, memory = (statistics.median(column) for column in zip(*results, strict=True))
        print(f"| {' '.join(words[:2])} | | {seconds:.2f} | | {memory:.0f} |", flush=True)


def run(program: str, arguments: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Return CPU seconds and the largest resident MB of a process and its children."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def ready(program: str, folder: Path, flags: list[str]) -> tuple[float, float]:
    """Return CPU seconds of a server until it is ready, and its resident MB then, idle."""
    how: Any = {"program": ("-c", program), "flags": [*flags, "--page"], "cache": folder / "cache"}
    with ServerProcess(folder / "store", **how) as server:
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        status = Path(f"/proc/{server.pid}/status").read_text()
        memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return seconds, memory / 1024


def installs(extras: list[str]) -> None:
    """Print megabytes and packages of a new environment per extra; uv's variables choose the index."""
    print("| extra | MB | packages |\n|---|---|---|")
    for extra in extras:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "env"
            subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
            what = str(ROOT) if extra == "base" else f"{ROOT}[{extra}]"
            before = size(place)
            python = str(place / "bin" / "python")
            subprocess.run(["uv", "pip", "install", "--quiet", "--python", python, what], check=True)
            packages = sum(1 for _ in place.glob("lib/python*/site-packages/*.dist-info")) - 1  # without pip
            print(f"| {extra} | {(size(place) - before) / 1e6:.0f} | {packages} |", flush=True)


def size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


if __name__ == "__main__":
    main()
