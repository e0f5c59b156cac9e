"""Transactions of pyiceberg whose time does not grow so much with the number of snapshots."""

from __future__ import annotations

from functools import cache
from typing import Any

__all__ = ["begin_transaction", "keep_files"]


def begin_transaction(table: Any) -> Any:
    """A transaction of a table that exists.

    Args:
        table: of pyiceberg.
    """
    return _remembering()(table)


def keep_files(transaction: Any) -> None:
    """Lets the manifests of a transaction stay if its commit fails.

    A transport that retries after a lost answer gets a refusal, although the commit was made.
    """
    for producer in transaction._snapshot_producers:
        producer._clean_all_uncommitted = lambda: None


@cache
def _remembering() -> type:
    from pyiceberg.table import Transaction

    class Remembering(Transaction):
        """Computes its metadata once after each change.

        pyiceberg computes them each time, some twenty times in a commit, and copies the descriptions of all snapshots.
        """

        _computed: Any = None

        @property
        def table_metadata(self) -> Any:
            if self._computed is None or self._computed[0] is not self._updates:
                self._computed = self._updates, super().table_metadata
            return self._computed[1]

    return Remembering
