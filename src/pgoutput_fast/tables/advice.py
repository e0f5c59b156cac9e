"""Advice for errors of a store with tables."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.errors import CatalogAwayError

__all__ = ["advised"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# delta-rs and pyarrow have the number of the system's error only in the message.
_NUMBER = re.compile(r"(?:os error|errno) (\d+)")
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_AFTER = "The tables are as before, or the next run finishes the commit"


@contextmanager
def advised(store: Store) -> Iterator[None]:
    """Adds advice to an OSError, unless it has some already."""
    try:
        yield
    except NotADirectoryError:
        raise  # its message is sufficient
    except OSError as problem:
        # An error of a catalog says enough. A directory has no connections.
        is_of_catalog = any(isinstance(each, CatalogAwayError) for each in (problem, problem.__cause__))
        is_own = not is_of_catalog and not (store.local and isinstance(problem, ConnectionError))
        if is_own and not hasattr(problem, "__notes__"):
            problem.add_note(_advice(problem, store))
        raise


def _advice(problem: OSError, store: Store) -> str:
    number = problem.errno
    if number is None:
        said = _NUMBER.search(str(problem))
        number = None if said is None else int(said[1])
    if number in _FULL:
        where = (
            store if store.local else "the directory of temporary files (TMPDIR), from which files are sent"
        )
        return f"There is no space for files of tables in {where}. {_AFTER}. Make space, and run it again"
    if number in _REFUSED:
        return (
            f"This process may not write to {store}. Give it the permission, or use another target. {_AFTER}"
        )
    if store.local:
        return f"{store} cannot be written. {_AFTER}. Check the disk, and run it again"
    return (
        f"{store} cannot be reached, or refuses. {_AFTER}. Check that the bucket exists, the credentials, and the "
        "endpoint, and run it again"
    )
