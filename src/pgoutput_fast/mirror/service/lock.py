"""One writer: only one process at a time changes the current tables of a target."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pgoutput_fast.mirror.service.lease import Lease
from pgoutput_fast.mirror.state.layout import OWN
from pgoutput_fast.storage.locks import try_lock
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.errors import MirrorBusyError

__all__ = ["locked"]

_LOCK = f"{OWN}/lock"


@contextmanager
def locked(store: Store) -> Iterator[Callable[[], object]]:
    """Keeps other processes away from a target: with a lock on a local disk, with a lease in an object store.

    Yields:
        A function to call before each commit. It raises MirrorBusyError if another process has taken the target, which
        is possible only in an object store.

    Raises:
        MirrorBusyError: if another process has the target.
    """
    if not store.local:
        lease = Lease(store)
        try:
            lease.claim()
            yield lease.check
        finally:
            lease.end()
        return
    path = Path(store.at(_LOCK))
    path.parent.mkdir(exist_ok=True)
    while True:
        with open(path, "ab") as file:
            if not try_lock(file):
                raise MirrorBusyError(
                    f"another process mirrors into {store}: stop it first, or use another target"
                )
            # A mirror that could not begin removes its lock file. A lock on that file excludes nobody.
            if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                path.parent.mkdir(exist_ok=True)
                continue
            yield _nothing
            return


def _nothing() -> None:
    """The lock is sufficient."""
