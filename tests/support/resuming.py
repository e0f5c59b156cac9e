"""Continues from a state in another process, and collects the results of all processes."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from pgoutput_fast import Decoded, Decoder, Options, StreamState
from support.streams import TABLES, rows_of, summary, table_of

# How a state is passed on, and where waiting changes are stored: in memory, in private files or in files of a
# directory.
WAYS = [
    ("pickle", "memory"),
    ("json", "memory"),
    ("json", "private files"),
    ("pickle", "files"),
    ("json", "files"),
]


def options_of(where: str, directory: Path, **more: Any) -> Options:
    return Options(
        transactions="committed",
        memory_limit=1 << 26 if where == "memory" else 1,
        spill_directory=directory if where == "files" else None,
        **more,
    )


class Given:
    """The results of one or more processes."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.tables: dict[str, list[Any]] = {name: [] for name in TABLES}

    def add(self, out: Decoded) -> Given:
        self.rows += rows_of(out)
        for name in TABLES:
            self.tables[name] += table_of(getattr(out, name))
        return self

    def and_then(self, other: Given) -> dict[str, Any]:
        """All results, in the form used to compare streams."""
        return summary(
            self.rows + other.rows, {name: self.tables[name] + other.tables[name] for name in TABLES}
        )


def saved(state: StreamState, how: str) -> bytes:
    return pickle.dumps(state) if how == "pickle" else state.to_json().encode()


def loaded(data: bytes, how: str) -> StreamState:
    if how == "pickle":
        state = pickle.loads(data)
        assert isinstance(state, StreamState)
        return state
    json.loads(data)
    return StreamState.from_json(data.decode())


def go_on(
    data: bytes,
    how: str,
    options: Options,
    payloads: Sequence[bytes],
    lsns: Sequence[int],
    sessions: set[int],
) -> Given:
    """Decodes the rest of a stream, with one call per session. `sessions` are ordinals in this rest."""
    given = Given()
    with Decoder(options, loaded(data, how)) as decoder:
        edges = [0, *sorted(each for each in sessions if each > 0), len(payloads)]
        for begin, end in itertools.pairwise(edges):
            if begin in sessions:
                decoder.start_session()
            given.add(decoder.decode(payloads[begin:end], lsn=lsns[begin:end] if lsns else None))
    return given


class OtherProcess:
    """A second process, without the first process's decoders."""

    def __enter__(self) -> OtherProcess:
        self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        return self

    def __exit__(self, *exception: object) -> None:
        self.pool.shutdown()

    def go_on(self, *arguments: Any) -> Given:
        return self.pool.submit(go_on, *arguments).result(120)


def go_on_in_a_new_process(*arguments: Any) -> Given:
    """As `go_on`, in a new process."""
    code = "import pickle, sys; from support import resuming; a = pickle.load(sys.stdin.buffer); sys.stdout.buffer.write(pickle.dumps(resuming.go_on(*a)))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        input=pickle.dumps(arguments),
        capture_output=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr.decode()
    given = pickle.loads(done.stdout)
    assert isinstance(given, Given)
    return given
