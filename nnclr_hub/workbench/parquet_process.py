"""Parquet files, decoded in a separate process.

The footer of a damaged file can contradict its content in rows, sizes, columns and types. pyarrow then may abort the
process, not return, or ask for any amount of memory. Here that ends a process that does nothing else, and whose memory
and CPU time are limited.

    for batch, rows in parquet_batches(path, 1000, most, memory):    # rows: of the whole file
        ...
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from nnclr_hub.errors import InvalidRequest, ServiceError
from nnclr_hub.images.pool import limit_memory
from nnclr_hub.workbench.table_limits import check_batch

TEXTS = ("STRING", "JSON", "ENUM", "NONE")
CPU_S = 30.0  # CPU seconds to decode a batch
# a file with more rows than FREE_ROWS has at most ROWS_PER_BYTE: a few kilobytes may hold billions of equal rows,
# and a million ascending ids take down to 0.056 bytes each
FREE_ROWS, ROWS_PER_BYTE = 100_000, 32
REFUSED, DAMAGED = 3, 4  # exit statuses; the reason is written to stderr
# how pyarrow ends on invalid data
CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL}
_START = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from {} import main; main(*sys.argv[1:])"


def parquet_batches(path: Path, rows: int, most: int, memory: int, cpu_s: float = CPU_S) -> Iterator[tuple[Any, int]]:
    """Yield record batches, each checked by `check_batch`, and how many rows the file has.

    Args:
        path: of the file.
        rows: per batch, at most.
        most: bytes of a batch when all its values are decoded.
        memory: bytes that decoding may take.
        cpu_s: CPU seconds that decoding a batch may take.

    Raises:
        InvalidRequest: the file is not Parquet, is damaged, or exceeds a limit.
        ServiceError: the process failed for another reason than the file.
    """
    from pyarrow import ArrowException, ipc

    # -I and -S: the path is given, and reading it again takes a third of the start
    command = [sys.executable, "-I", "-S", "-c", _START.format(__name__)]
    places = [str(Path(__file__).resolve().parents[2]), *sys.path]
    command += [json.dumps(places), str(path.absolute()), *map(str, (rows, most, memory, cpu_s))]
    # pools that reserve addresses in advance would exceed the limit
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
    unreadable = ""
    with (
        tempfile.TemporaryFile() as messages,  # a pipe that nobody reads would fill up
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=messages,
            env=environment,
            start_new_session=True,  # Ctrl-C in a terminal reaches the parent only
        ) as process,
    ):
        try:
            with ipc.open_stream(process.stdout) as stream:
                total = int(stream.schema.metadata[b"rows"])
                for batch in stream:
                    yield batch, total
        except (ArrowException, OSError) as error:  # it has ended, or it wrote another stream
            unreadable = str(error)
        except BaseException:
            process.kill()
            raise
        if process.stdout is not None:
            process.stdout.close()
        if process.wait() or unreadable:
            raise _failure(process.returncode, _last_words(messages) or unreadable, memory, cpu_s)


def _failure(status: int, reason: str, memory: int, cpu_s: float) -> InvalidRequest | ServiceError:
    """Return the error for a process that ended with this status."""
    if status == REFUSED:
        return InvalidRequest(reason)
    if status == -signal.SIGPROF:
        return InvalidRequest(
            f"Decoding some rows of the file takes more than {cpu_s:g} CPU seconds; write it again, with smaller row "
            "groups."
        )
    if status in (0, DAMAGED) or status in CRASHES:  # 0: the parent cannot read what it wrote
        if status < 0:
            reason = f"reading it ends with {signal.Signals(-status).name}"
        return InvalidRequest(f"The file is not parquet, or it is damaged ({reason}); write it again.")
    if status == -signal.SIGKILL:
        return ServiceError(
            f"The process that decodes the file was killed, probably because the machine has too little memory; it may "
            f"take {memory >> 20} MiB. Try again later."
        )
    if status < 0:
        reason = signal.Signals(-status).name
    return ServiceError(f"The process that decodes the file failed ({reason or f'exit status {status}'}).")


def _last_words(messages: BinaryIO) -> str:
    """Return the end of the last line that the process wrote to stderr."""
    messages.seek(max(0, messages.seek(0, os.SEEK_END) - 2000))
    lines = messages.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:400] if lines else ""


def main(path: str, rows: str, most: str, memory: str, cpu_s: str) -> None:
    """Write the rows of a Parquet file to stdout, as a stream of Arrow."""
    from pyarrow import ipc
    from pyarrow.parquet import ParquetFile

    def start_timer() -> None:
        """Let the kernel end this process after so many CPU seconds from now on, even inside a decoder."""
        signal.setitimer(signal.ITIMER_PROF, float(cpu_s))

    limit_memory(int(memory))
    start_timer()
    try:
        with ParquetFile(path) as table:
            columns = [table.schema.column(i) for i in range(len(table.schema))]
            groups = [table.metadata.row_group(i) for i in range(table.metadata.num_row_groups)]
            count = table.metadata.num_rows
        if count > max(FREE_ROWS, ROWS_PER_BYTE * Path(path).stat().st_size):
            raise InvalidRequest(f"The file has {count} rows, over {ROWS_PER_BYTE} per byte; write each row once.")
        # read as dictionaries, which are not expanded; Arrow cannot read parts of structs so, nor differences of texts
        names = [
            one.path
            for i, one in enumerate(columns)
            if one.physical_type == "BYTE_ARRAY" and one.logical_type.type in TEXTS and "." not in one.path
            if not any("DELTA" in code for group in groups for code in group.column(i).encodings)
        ]
        read = 0
        with ParquetFile(path, read_dictionary=names) as table:
            schema = table.schema_arrow.with_metadata({"rows": str(count)})
            with ipc.new_stream(sys.stdout.buffer, schema) as stream:
                for batch in table.iter_batches(int(rows), use_threads=False):
                    check_batch(batch, int(most))
                    read += len(batch)
                    if read > count:
                        break
                    stream.write_batch(batch.replace_schema_metadata(schema.metadata))
                    start_timer()
        if read != count:
            raise ValueError(f"its footer has {count} rows, and its row groups have others")
    except InvalidRequest as error:
        _end(REFUSED, str(error))
    except MemoryError:
        _end(
            REFUSED,
            f"Decoding the file takes more than {int(memory) >> 20} MiB; write it again, with smaller row groups.",
        )
    except BrokenPipeError:
        os._exit(0)  # the parent has the reason
    except ImportError:
        raise
    except Exception as error:
        if getattr(error, "errno", None):  # of the machine
            raise
        _end(DAMAGED, str(error) or type(error).__name__)


def _end(status: int, reason: str) -> None:
    sys.stderr.write("\n" + " ".join(reason.split())[:400])
    sys.exit(status)
