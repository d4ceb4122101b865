"""System calls of a child, as strace saw them: who changed which file how, and when it was on the disk.

strace prints a call when it begins and, if others came between, once more when it ends. Both moments matter
here: what began may have happened, what ended has.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

# everything that changes what a file or a folder holds, and what is needed to know which file a descriptor means
TRACED = (
    "open,openat,creat,close,dup,dup2,dup3,fcntl,write,writev,pwrite64,pwritev,pwritev2,ftruncate,truncate,fallocate,"
    "fsync,fdatasync,sync,syncfs,sync_file_range,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,link,"
    "linkat,symlink,symlinkat,sendfile,copy_file_range,splice,lseek"
)
_LINE = re.compile(r"(\d+) +(.*)")
_WHOLE = re.compile(r"(\w+)\((.*)\) += (-?\d+|0x[0-9a-f]+|\?)(.*)", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)", re.DOTALL)


Argument = int | bytes | str


@dataclass(frozen=True, eq=False)
class Call:
    """One system call that succeeded.

    name: of the call.
    arguments: numbers as int, strings as bytes, the rest as strace prints it.
    result: what it returned.
    begun, ended: lines of the trace; what ended at a line had happened when the next one began.
    thread: that made the call; strace counts calls for each thread when it makes them fail.
    """

    name: str
    arguments: tuple[Argument, ...]
    result: int
    begun: int
    ended: int
    thread: str


def command(trace: Path) -> list[str]:
    """Return the prefix of a command line that records its calls in a file.

    Skips the test where strace is missing or not allowed to trace.
    """
    program = shutil.which("strace")
    if program is None:
        pytest.skip("strace is not installed")
    if subprocess.run([program, "-o", "/dev/null", "true"], capture_output=True).returncode != 0:
        pytest.skip("strace may not trace here (ptrace is not allowed)")
    return [program, "-f", "--seccomp-bpf", "-qq", "-xx", "-s", "16777216", "-o", str(trace), "-e", f"trace={TRACED}"]


def calls(trace: Path) -> list[Call]:
    """Return the successful calls of a recording, in the order in which they ended."""
    found = []
    begun: dict[str, tuple[int, str]] = {}
    for number, (thread, text) in enumerate(_lines(trace)):
        start = number
        if text.endswith("<unfinished ...>"):
            begun[thread] = number, text.removesuffix("<unfinished ...>")
            continue
        if resumed := _RESUMED.match(text):
            start, first = begun.pop(thread)
            text = first + resumed[2]
        if (whole := _WHOLE.match(text)) is None:
            continue  # a signal, an exit
        name, arguments, result, _ = whole.groups()
        if result != "?" and (value := int(result, 0)) >= 0:
            found.append(Call(name, _arguments(arguments), value, start, number, thread))
    return found


def _lines(trace: Path) -> Iterator[tuple[str, str]]:
    with trace.open() as lines:
        for line in lines:
            match = _LINE.match(line.rstrip("\n"))
            assert match is not None, f"no line of strace: {line[:200]!r}"
            yield match[1], match[2].rstrip()


def _arguments(text: str) -> tuple[Argument, ...]:
    """Split at the top level's commas; a string is hexadecimal throughout, so it contains no comma."""
    return tuple(_argument(part.strip()) for part in re.split(r",(?![^\[{]*[\]}])", text))


def _argument(text: str) -> Argument:
    if text.startswith('"'):
        assert not text.endswith("..."), "strace cut a string short"
        return ast.literal_eval("b" + text)
    try:
        return int(text, 0)
    except ValueError:
        return text


def traced_run(command_line: Sequence[str], trace: Path, **options) -> subprocess.CompletedProcess[str]:
    """Run a command to its end under strace."""
    return subprocess.run(
        [*command(trace), *command_line], check=False, capture_output=True, text=True, timeout=300, **options
    )
