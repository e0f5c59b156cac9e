"""What a target knows of its tables of changes beside their own commits: how far each was read, and which are stopped.

A table without changes gets no commit. How far it was read then is in a file of the target, which a run writes after
the commits. If a run is killed in between, or if something else commits to a table, the table's own position differs
from the one that the file has for it. Then its own position counts, and the run reads a range again that has no rows
for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self, get_args

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.schema.options import Transactions
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.stream import Stream
from pgoutput_fast.tables.table import Ordinal

__all__ = ["Progress", "Stop", "TableProgress"]

_FILE = "_progress.json"
_VERSION = 1
# What values of another form raise.
_DAMAGES = (ValueError, TypeError, LookupError, AttributeError, OverflowError)


class Stop(NamedTuple):
    """Why a table is stopped while others go on, and since when."""

    reason: str
    at: datetime


@dataclass(frozen=True)
class TableProgress:
    """What the file has of a table.

    Attributes:
        own: the position of the table's newest commit; -1 if it stopped before its first one.
        reached: how far it was read.
        stop: why it is stopped; None if it is not.
    """

    own: int
    reached: Ordinal
    stop: Stop | None = None


@dataclass
class Progress:
    """The tables of a target.

    Attributes:
        store: the target.
        format: the format of the tables.
        end: the last message that a run has seen.
        tables: directory -> what the file has of the table.
    """

    store: Store
    format: str
    end: int = -1
    tables: dict[str, TableProgress] = field(default_factory=dict)
    _saved: tuple[int, Mapping[str, TableProgress]] = (-1, field(default_factory=dict))

    @classmethod
    def read(cls, store: Store, format: str = "") -> Self:
        """Reads the file. Without a valid file, no table has more than its own position.

        Args:
            store: the target.
            format: the format of a target without a valid file.
        """
        found = cls(store, format)
        with suppress(FileNotFoundError, NotADirectoryError, *_DAMAGES):
            values = parsed_json(store.read(_FILE))
            if values["version"] == _VERSION:
                known = [_ordinal(each) for each in values["positions"]]
                tables = {str(name): _table(each, known) for name, each in values["tables"].items()}
                found.end, found.tables = int(values["end"]), tables
                found.format = format or str(values["format"])
        found._saved = found.end, dict(found.tables)
        return found

    def ordinal(self, directory: str, own: Ordinal | None) -> Ordinal | None:
        """How far a table was read: at least to its own position."""
        known = self.tables.get(directory)
        if own is None or known is None or known.own != own.seq or known.reached.seq < own.seq:
            return own
        reached = known.reached
        return Ordinal(reached.seq, reached.stream or own.stream, reached.transactions or own.transactions)

    def advance(self, directory: str, own: int, reached: Ordinal) -> None:
        """Notes how far a table was read. It is not stopped any more.

        Args:
            directory: the table's directory.
            own: the position of its newest commit.
            reached: how far it was read.
        """
        known = self.tables.get(directory)
        if reached.stream is None and known is not None:
            reached = reached._replace(stream=known.reached.stream)
        self.tables[directory] = TableProgress(own, reached)

    def stop(self, directory: str, reason: str) -> None:
        """Notes that a table is stopped. Its position stays. For the same reason, so does the time."""
        known = self.tables.get(directory, TableProgress(-1, Ordinal(-1)))
        if known.stop is None or known.stop.reason != reason:
            self.tables[directory] = replace(known, stop=Stop(reason, datetime.now(UTC)))

    def save(self) -> None:
        """Writes the file, if anything is new."""
        if (self.end, self.tables) == self._saved:
            return
        positions: dict[Ordinal, int] = {}
        tables: dict[str, Any] = {}
        for directory, each in self.tables.items():
            tables[directory] = [each.own, positions.setdefault(each.reached, len(positions))]
            if each.stop is not None:
                tables[directory] += [each.stop.reason, each.stop.at.isoformat()]
        values = {
            "version": _VERSION,
            "format": self.format,
            "end": self.end,
            "positions": [_values(each) for each in positions],
            "tables": tables,
        }
        self.store.put(_FILE, json.dumps(values).encode())
        self._saved = self.end, dict(self.tables)


def _values(reached: Ordinal) -> list[Any]:
    stream = reached.stream
    named = None if stream is None or stream.names is None else stream.to_json()
    return [reached.seq, named, reached.transactions]


def _ordinal(values: list[Any]) -> Ordinal:
    seq, stream, transactions = values
    if transactions not in (None, *get_args(Transactions)):
        raise ValueError
    return Ordinal(int(seq), None if stream is None else Stream.from_json(stream), transactions)


def _table(values: list[Any], known: list[Ordinal]) -> TableProgress:
    own, at, *stop = values
    reason_and_time = Stop(str(stop[0]), datetime.fromisoformat(stop[1])) if stop else None
    return TableProgress(int(own), known[int(at)], reason_and_time)
