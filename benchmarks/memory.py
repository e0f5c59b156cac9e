"""Measures the memory that decoding takes in addition to its input and output: `python -m benchmarks.memory`.

Every case runs in its own process. The process makes the input, resets the peak of the resident set, runs one `decode`,
and reads the peak. It subtracts these parts from the peak:

- the resident set before the call, which includes the input;
- the output: the bytes of the results' buffers, without columns that have only nulls, whose memory is never touched;
- `objects`: Arrow's own memory for this number of batches and columns, which does not depend on the number of rows. To
  measure it, the process reads the first row of every result from Arrow's own format.

The rest is `beyond`. Its limit is BOUND, regardless of the amount decoded, plus RELATION for every relation version
with rows. RELATION is for the decoder's data on the version, and for the gaps that its small growing buffers leave in
the allocator.

`--update` rewrites the table in README.md.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

import pgoutput_fast as pgo
from benchmarks import corpora
from benchmarks.corpora import shapes
from benchmarks.report import machine, rewrite

__all__ = ["BOUND", "CASES", "Taken", "main", "measure", "section"]

MB = 1_000_000
BOUND = 32 << 20
RELATION = 8_000
README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- memory figures -->", "<!-- end of memory figures -->"


def _corpus(name: str, scale: float) -> pa.Array:
    return corpora.corpus(name, scale).payloads


CASES: dict[str, Callable[[], pa.Array]] = {
    **{
        f"{name}, scale {scale:g}": partial(_corpus, name, scale)
        for name in corpora.FULL_MESSAGES
        for scale in (0.1, 0.5, 2)
    },
    "1,000 relations in turn": lambda: _whole(shapes.relations(1_000, 1_000_000, 1_000_000)),
    "10,000 relations in turn": lambda: _whole(shapes.relations(10_000, 1_000_000, 1_000_000)),
    "200 relations with arrays": lambda: _whole(shapes.arrays(200, 100_000, 100)),
    "1,600 columns": lambda: _whole(shapes.columns(1_600, 10_000)),
    "text of 100 kB": lambda: _whole(shapes.long_cell(100_000, 1_000)),
    "text of 50 MB": lambda: _whole(shapes.long_cell(50_000_000, 4)),
    "jsonb of 300 MB": lambda: _whole(shapes.long_cell(300_000_000, 1, "jsonb")),
    "bytea of 150 MB, hex": lambda: _whole(shapes.long_cell(300_000_000, 1, "bytea hex")),
    "mostly null": lambda: _whole(shapes.nulls(100, 100_000)),
    "one relation, 3,000,000 rows": lambda: _whole(shapes.relations(1, 3_000_000, 3_000_000)),
    "empty transactions": lambda: _whole(shapes.transactions(1_000_000, 0)),
    "subtransactions": lambda: _whole(shapes.subtransactions(300_000, True)),
}


@dataclass(frozen=True)
class Taken:
    """Memory of a case, in bytes."""

    input: int
    output: int
    objects: int
    peak: int
    left: int
    relations: int

    @property
    def allowed(self) -> int:
        return BOUND + RELATION * self.relations

    @property
    def beyond(self) -> int:
        return self.peak - self.output - self.objects


def measure(name: str, threads: int = 1) -> Taken:
    """Measures one case in its own process.

    Raises:
        RuntimeError: if that process fails.
    """
    command = [sys.executable, "-m", "benchmarks.memory", "--run", name, "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=README.parents[1])
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return Taken(**json.loads(done.stdout))


def _run(name: str, threads: int) -> Taken:
    payloads = CASES[name]()
    options = pgo.Options(threads=threads)
    pgo.decode(payloads[:1], options=options)  # imports modules and makes one-time objects
    _give_back()  # otherwise the call would use freed memory of the input, which is not measured
    before = _forget_peak()
    out = pgo.decode(payloads, options=options)
    peak, left = _peak() - before, _resident() - before
    output = sum(_nbytes(each.batch) for each in out.changes)
    for table in (out.transactions, out.outcomes, out.truncates, out.messages, out.rejects):
        output += _nbytes(table)
    objects = _objects(out.changes)
    relations = len({each.relation.version for each in out.changes})
    return Taken(payloads.nbytes, output, objects, peak, left, relations)


def _give_back() -> None:
    """Returns free memory to the kernel."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)


def _objects(changes: Sequence[pgo.Change]) -> int:
    """Memory of Arrow's objects for these batches without their data, with one schema per relation version."""
    schemas: dict[int, pa.Schema] = {}

    def again(change: pgo.Change) -> pa.RecordBatch:
        version, schema = change.relation.version, change.batch.schema
        if version not in schemas:
            schemas[version] = pa.schema(list(schema), metadata=schema.metadata)
        return pa.ipc.read_record_batch(change.batch.slice(0, 1).serialize(), schemas[version])

    first = [again(change) for change in changes[:1]]  # also makes one-time objects, which must not count
    schemas.clear()
    before = _in_use()
    made = [again(change) for change in changes]
    return max(0, _in_use() - before) if first and made else 0


class _Arena(ctypes.Structure):
    """The result of glibc's mallinfo2."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


def _in_use() -> int:
    """Bytes allocated with malloc and not freed. Arrow's own arrays use another allocator."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Arena
    arena = libc.mallinfo2()
    return int(arena.uordblks + arena.hblkhd)


def _nbytes(batch: pa.RecordBatch) -> int:
    return sum(each.nbytes for each in batch.columns if each.null_count < len(each))


def _status(what: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"this kernel does not report {what}")


def _resident() -> int:
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _forget_peak() -> int:
    """Resets the peak to the current resident set, and returns its size."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 > _resident() + MB:
            raise RuntimeError("this system cannot reset the peak, and making the input took more") from None
    return _resident()


def _whole(shape: shapes.Shape) -> pa.Array:
    """The payloads of `known` and of all calls, as one array."""
    return pa.concat_arrays([pa.array(shape.known, shape.calls[0].type), *shape.calls])


def section(taken: dict[tuple[str, int], Taken]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| | threads | input MB | output MB | Arrow's objects MB | peak MB | beyond MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (name, threads), each in taken.items():
        figures = (each.input, each.output, each.objects, each.peak, each.beyond)
        lines.append(
            f"| {name} | {threads} | " + " | ".join(f"{figure / MB:,.1f}" for figure in figures) + " |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns 1 if a case takes too much memory."""
    parser = argparse.ArgumentParser("python -m benchmarks.memory", description=__doc__.split("\n\n")[0])
    parser.add_argument("cases", nargs="*", help="measure only cases whose names contain one of these")
    parser.add_argument("--threads", type=int, help="number of threads; default: measure with 1 and with 2")
    parser.add_argument("--update", action="store_true", help="rewrite the table in README.md")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.run is not None:
        print(json.dumps(asdict(_run(given.run, given.threads))))
        return 0
    taken = {}
    for name in CASES:
        if given.cases and not any(part in name for part in given.cases):
            continue
        for threads in (given.threads,) if given.threads else (1, 2):
            each = taken[name, threads] = measure(name, threads)
            print(
                f"{name}, {threads} thread(s): input {each.input / MB:.1f} MB, output {each.output / MB:.1f}, "
                f"objects {each.objects / MB:.1f}, "
                f"peak {each.peak / MB:.1f}, left {each.left / MB:.1f}, beyond {each.beyond / MB:.1f}"
                + (" TOO MUCH" if each.beyond > each.allowed else ""),
                flush=True,
            )
    if given.update:
        rewrite(README, f"{machine()}\n\n{section(taken)}", BEGIN, END)
    return 1 if any(each.beyond > each.allowed for each in taken.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
