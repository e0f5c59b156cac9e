"""What a target knows of its tables of changes beside their own commits: how far each was read, and which are stopped.

A table without changes gets no commit. How far it was read then is in a file of the target, which a run writes after
the commits. If a run is killed in between, or if something else commits to a table, the table's own position differs
from the one that the file has for it. Then its own position counts, and the run reads a range again that has no rows
for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
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
_LAST = 2**63 - 1
_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
# What values of another form raise.
_DAMAGES = (ValueError, TypeError, LookupError, AttributeError, OverflowError)


class Stop(NamedTuple):
    """Why a table is stopped while others go on, and since when. No reason: the user left it out."""

    reason: str | None
    at: datetime


@dataclass(frozen=True)
class TableProgress:
    """What the file has of a table.

    Attributes:
        format: the format of the table.
        own: the position of its newest commit; -1 if it stopped before its first one.
        reached: how far it was read.
        checked: the version whose statistics were checked; -1 if none was.
        stop: why it is stopped or left out; None if it is not.
    """

    format: str
    own: int
    reached: Ordinal
    checked: int = -1
    stop: Stop | None = None


@dataclass
class Progress:
    """The tables of a target.

    Attributes:
        store: the target.
        tables: directory -> what the file has of the table.
        ends: the digest of a stream, as text -> the last message of it that a run has seen. "" for unknown streams.
    """

    store: Store
    tables: dict[str, TableProgress] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    _saved: tuple[Mapping[str, TableProgress], Mapping[str, int]] = field(default=({}, {}), repr=False)

    @classmethod
    def read(cls, store: Store) -> Self:
        """Reads the file. Without a valid file, no table has more than its own position."""
        found = cls(store)
        with suppress(FileNotFoundError, NotADirectoryError, *_DAMAGES):
            values = parsed_json(store.read(_FILE))
            if values["version"] == _VERSION:
                known = [_ordinal(each) for each in values["positions"]]
                tables = {str(name): _table(each, known) for name, each in values["tables"].items()}
                ends = {str(digest): _number(end) for digest, end in values["ends"].items()}
                found.tables, found.ends = tables, ends
        found._saved = dict(found.tables), dict(found.ends)
        return found

    def ordinal(self, directory: str, own: Ordinal | None) -> Ordinal | None:
        """How far a table was read: at least to its own position."""
        known = self.tables.get(directory)
        if own is None or known is None or known.own != own.seq or known.reached.seq < own.seq:
            return own
        reached = known.reached
        return Ordinal(reached.seq, reached.stream or own.stream, reached.transactions or own.transactions)

    def end_of(self, stream: Stream | None) -> int:
        """The last message of a stream that a run has seen."""
        return self.ends.get(_key(stream), -1)

    def see(self, position: Ordinal) -> None:
        """Notes that a run has seen the messages up to a position."""
        self.ends[_key(position.stream)] = max(position.seq, self.end_of(position.stream))

    def advance(self, directory: str, format: str, own: int, reached: Ordinal, checked: int = -1) -> None:
        """Notes how far a table was read. It is not stopped any more.

        Args:
            directory: the table's directory.
            format: its format.
            own: the position of its newest commit.
            reached: how far it was read.
            checked: the version whose statistics were checked.
        """
        known = self.tables.get(directory)
        if reached.stream is None and known is not None:
            reached = reached._replace(stream=known.reached.stream)
        self.tables[directory] = TableProgress(format, own, reached, checked)

    def forget(self, directories: Iterable[str]) -> None:
        """Removes what the file has of tables that are replaced: their next positions may be of another stream."""
        for directory in directories:
            self.tables.pop(directory, None)
        self.save()

    def stop(self, directory: str, format: str, reason: str, stream: Stream | None) -> None:
        """Notes that a table is stopped. Its position stays. If it is stopped already, so does the time.

        The table of another stream is not stopped by payloads that it cannot take.
        """
        self._stop(
            directory,
            self.tables.get(directory, TableProgress(format, -1, Ordinal(-1, stream))),
            reason,
            stream,
        )

    def leave_out(self, directory: str, stream: Stream | None) -> None:
        """Notes that the user leaves a table out, if the file has it. Otherwise as `stop`."""
        if (known := self.tables.get(directory)) is not None:
            self._stop(directory, known, None, stream)

    def _stop(self, directory: str, known: TableProgress, reason: str | None, stream: Stream | None) -> None:
        before, stop = known.reached.stream, known.stop
        if before is not None and stream is not None and before.digest != stream.digest:
            return
        goes_on = stop is not None and (stop.reason is None) == (reason is None)
        since = stop.at if stop is not None and goes_on else datetime.now(UTC)
        self.tables[directory] = replace(known, stop=Stop(reason, since))

    def save(self) -> None:
        """Writes the file, if anything is new."""
        if (self.tables, self.ends) == self._saved:
            return
        positions: dict[Ordinal, int] = {}
        tables: dict[str, Any] = {}
        for directory, each in self.tables.items():
            at = positions.setdefault(each.reached, len(positions))
            tables[directory] = [each.format, each.own, at, each.checked]
            if each.stop is not None:
                tables[directory] += [each.stop.reason, each.stop.at.isoformat()]
        values = {
            "version": _VERSION,
            "ends": self.ends,
            "positions": [_values(each) for each in positions],
            "tables": tables,
        }
        self.store.put(_FILE, json.dumps(values).encode())
        self._saved = dict(self.tables), dict(self.ends)


def _key(stream: Stream | None) -> str:
    return "" if stream is None else str(stream.digest)


def _number(value: Any) -> int:
    number = int(value)
    if not -1 <= number <= _LAST:
        raise ValueError
    return number


def _values(reached: Ordinal) -> list[Any]:
    stream = reached.stream
    named = None if stream is None or stream.names is None else stream.to_json()
    return [reached.seq, named, reached.transactions]


def _ordinal(values: list[Any]) -> Ordinal:
    seq, stream, transactions = values
    if transactions not in (None, *get_args(Transactions)):
        raise ValueError
    return Ordinal(_number(seq), None if stream is None else Stream.from_json(stream), transactions)


def _table(values: list[Any], known: list[Ordinal]) -> TableProgress:
    format, own, at, checked, *stop = values
    reason_and_time = None
    if stop:
        reason = None if stop[0] is None else str(stop[0])
        reason_and_time = Stop(reason, datetime.fromisoformat(stop[1]))
        if not _FIRST <= reason_and_time.at <= datetime.now(UTC):
            raise ValueError
    return TableProgress(str(format), _number(own), known[int(at)], _number(checked), reason_and_time)
