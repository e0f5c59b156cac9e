"""The state of a sink of current tables, stored beside its tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.mirror.state.layout import OWN
from pgoutput_fast.storage.stores import Store

__all__ = ["NOTES_FILE", "Notes", "Stop", "read_notes", "write_notes"]

NOTES_FILE = f"{OWN}/spark.json"


@dataclass(frozen=True)
class Stop:
    """Why a table is stopped while others go on.

    Attributes:
        reason: the error.
        since: when it stopped first, as ISO 8601.
        seq: ordinal of the last message whose commits it has; -1 if it has none.
    """

    reason: str
    since: str
    seq: int


@dataclass(frozen=True)
class Notes:
    """The progress of all tables.

    Attributes:
        directory: the directory of the segments, without credentials; None before the first batch. Another directory
            has its own ordinals.
        tables: the tables of the sink, sorted; None for all. Others do not have the messages.
        seq: ordinal of the last message whose commits are in all tables; None before the first batch.
        lsn: everything committed up to this LSN is in all tables.
        time: time of the last of these commits, in microseconds since 1970; None if no commit is known.
        oids: {qualified name of a table: the oid of its relation}.
        there: as `oids`, but only of the tables that batches have created or changed.
        keys: {qualified name of a table: its key columns}, for tables with changes since this is recorded.
        stopped: {qualified name of a table: why it does not have the messages up to `seq`}.
    """

    directory: str | None = None
    tables: Sequence[str] | None = None
    seq: int | None = None
    lsn: int = 0
    time: int | None = None
    oids: Mapping[str, int] = field(default_factory=dict)
    there: Mapping[str, int] = field(default_factory=dict)
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    stopped: Mapping[str, Stop] = field(default_factory=dict)

    def left_out(self, directory: str, tables: Collection[str] | None) -> str | None:
        """Describes those of these tables that lack the messages up to `seq`; None if all have them.

        >>> notes = Notes("segments", ["public.orders"], 9)
        >>> notes.left_out("segments", ["public.items", "public.orders"]), notes.left_out("segments", None)
        ('public.items', 'all tables but public.orders')
        """
        if self.seq is None or self.tables is None or directory != self.directory:
            return None
        if tables is None:
            return f"all tables but {', '.join(self.tables)}"
        return ", ".join(sorted(set(tables) - set(self.tables))) or None

    def lagging(self, directory: str, tables: Collection[str] | None) -> list[str]:
        """Those of these tables that are stopped, and lack messages of other segments than these."""
        if directory == self.directory:
            return []
        return sorted(name for name in self.stopped if tables is None or name in tables)

    def within(self, directory: str, tables: Collection[str] | None) -> Notes:
        """The notes for these segments and tables: if they are different ones, no message is known to be in all tables.

        Positions of tables prevent duplicate changes.

        >>> notes = Notes("segments", None, 9)
        >>> notes.within("segments", ["public.orders"]).seq, notes.within("segments/stream-1", None).seq
        (9, None)
        """
        seq = None if self.left_out(directory, tables) or directory != self.directory else self.seq
        # The ordinals of another directory are others. A table that was left out is not tried again.
        stopped = {
            name: stop
            for name, stop in self.stopped.items()
            if directory == self.directory and (tables is None or name in tables)
        }
        return replace(
            self,
            directory=directory,
            tables=None if tables is None else sorted(tables),
            seq=seq,
            stopped=stopped,
        )

    def with_stops(self, reasons: Mapping[str, str], first: int) -> Notes:
        """The notes with tables that are stopped now. One that was already stopped keeps its time and its position.

        Args:
            reasons: {qualified name: why}.
            first: ordinal of the first message of the batch.
        """
        new = {
            name: replace(self.stopped[name], reason=reason)
            if name in self.stopped
            else Stop(reason, datetime.now(UTC).isoformat(), first - 1)
            for name, reason in reasons.items()
        }
        return replace(self, stopped={**self.stopped, **new})

    def without_stop(self, table: str) -> Notes:
        """The notes with a table that has the messages of the others."""
        return replace(self, stopped={name: stop for name, stop in self.stopped.items() if name != table})

    def with_tables(self, other: Notes, tables: Collection[str]) -> Notes:
        """The notes with what others know of the relations and the keys of tables."""
        oids = {name: oid for name, oid in other.oids.items() if name in tables}
        keys = {name: key for name, key in other.keys.items() if name in tables}
        return replace(self, oids={**self.oids, **oids}, keys={**self.keys, **keys})


def read_notes(store: Store) -> Notes:
    """Returns the notes of a target; empty ones if it has none.

    Raises:
        ValueError: if the file is damaged.
    """
    try:
        values = parsed_json(store.read(NOTES_FILE))
        stopped = {name: Stop(**each) for name, each in values.pop("stopped", {}).items()}
        notes = Notes(**values, stopped=stopped)
        counts = [
            notes.lsn,
            *(stop.seq for stop in stopped.values()),
            *([] if notes.seq is None else [notes.seq]),
        ]
        texts = [text for stop in stopped.values() for text in (stop.reason, stop.since)]
        if not all(type(count) is int for count in counts) or not all(
            isinstance(text, str) for text in texts
        ):
            raise TypeError
        return notes
    except FileNotFoundError:
        return Notes()
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"{store}/{NOTES_FILE} is damaged: restore it, or use another target") from None


def write_notes(store: Store, notes: Notes, check: Callable[[], object]) -> None:
    """Replaces the notes of a target, unless another process has taken it (`check`)."""
    check()
    store.put(NOTES_FILE, json.dumps(asdict(notes)).encode())
