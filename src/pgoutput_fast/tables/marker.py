"""The marker of a run: a file in the target that exists while the run may write.

The lease of the driver (`storage.lease`) keeps other drivers away, but a task cannot check it: a task is another
process, often on another machine, and in a directory the lease is a lock of the driver's process. A task may also
outlive its run: Spark ran it twice, or the driver was killed and another run has begun. Such a task sees that the
marker is gone, and removes its own files. So a run ends in this order: first the marker is removed, then the files that
no table has. A file that appears later is removed by its own task. The next driver knows from markers which runs were
killed.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.storage.stores import Store

__all__ = ["check_marker", "end_marker", "ended_at", "format_of", "left_runs", "put_marker", "remove_marker"]

_RUNS = "_runs"


def put_marker(store: Store, run: str, format: str = "") -> None:
    """Marks the start of a run that writes tables of a format."""
    begun = {"host": socket.gethostname(), "process": os.getpid(), "at": datetime.now(UTC).isoformat()}
    store.put(_running(run), json.dumps(begun | {"format": format}).encode())


def format_of(store: Store, run: str) -> str:
    """The format of a run's tables. Empty for a run of an earlier version."""
    for name in (_running(run), _ended(run)):
        with suppress(FileNotFoundError, ValueError, AttributeError):
            return str(parsed_json(store.read(name)).get("format", ""))
    return ""


def end_marker(store: Store, run: str, format: str = "") -> None:
    """Marks the end of a run. `left_runs` still has the run. Called again, it keeps the time of the first call."""
    if ended_at(store, run) is None:
        store.put(_ended(run), json.dumps({"format": format}).encode())
    store.remove(_running(run))


def ended_at(store: Store, run: str) -> float | None:
    """When the end of a run was marked, in seconds since 1970. None if it was not."""
    return next((entry.modified for entry in store.entries(_RUNS) if entry.name == _ended(run)), None)


def remove_marker(store: Store, run: str) -> None:
    """Forgets a run."""
    store.remove(_running(run))
    store.remove(_ended(run))


def left_runs(store: Store) -> list[str]:
    """The runs that have a marker."""
    found = set()
    for path in store.names(_RUNS):
        name = path.rpartition("/")[2]
        if name.startswith("."):  # left by a killed process
            store.remove(path)
        else:
            found.add(name.partition(".")[0])
    return sorted(found)


def check_marker(store: Store, run: str) -> None:
    """Checks that a run may write.

    Raises:
        RuntimeError: if the run has ended, or if another run has begun.
    """
    try:
        store.read(_running(run))
    except FileNotFoundError:
        raise RuntimeError(
            f"this run may not write to {store} any more: it has ended, or another run has begun. Let only one process "
            "at a time write tables to a target"
        ) from None


def _running(run: str) -> str:
    return f"{_RUNS}/{run}.json"


def _ended(run: str) -> str:
    return f"{_RUNS}/{run}.ended.json"
