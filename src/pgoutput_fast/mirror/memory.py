"""What a mirror remembers beside its tables, in small files that are replaced whole.

How far a table is, the table itself says. Here stands what no table can say: how the mirror began, where to begin to
read the segments, and what is wrong with a table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from pgoutput_fast.mirror.layout import OWN
from pgoutput_fast.storage.stores import Store

__all__ = ["Beginning", "KnownColumn", "Memory", "Progress", "TableFacts"]

_BEGINNING, _PROGRESS, _TABLES = f"{OWN}/beginning.json", f"{OWN}/progress.json", f"{OWN}/tables"
_RUN = f"{OWN}/run.json"


@dataclass(frozen=True)
class Beginning:
    """How a mirror began.

    Attributes:
        slot: the slot's name.
        publications: their names, sorted.
        format: of the current tables.
        segments: the directory of the segments, if it is not the one in the target.
        stage: `slot` while the slot is created, `load` while the first load runs, `done` behind it.
        made: whether the mirror made the slot.
        lsn: `slot`: the end of the server's log before. Later: the position of the first load.
    """

    slot: str
    publications: tuple[str, ...]
    format: str
    segments: str | None
    stage: Literal["slot", "load", "done"]
    made: bool
    lsn: int

    def at(self, stage: Literal["slot", "load", "done"], lsn: int) -> Beginning:
        """The same mirror at another stage."""
        return replace(self, stage=stage, lsn=lsn)


@dataclass(frozen=True)
class Progress:
    """How far all tables are.

    Attributes:
        last_seq: ordinal of the last message of the last segment whose changes all tables have; -1 for none.
        next_seq: ordinal of the next message.
        lsn: everything that committed up to this LSN is in all tables.
        time: when the last of that committed, in microseconds since 1970; None if no commit is known.
    """

    last_seq: int
    next_seq: int
    lsn: int
    time: int | None = None


@dataclass(frozen=True)
class KnownColumn:
    """A column of a current table.

    Attributes:
        number: its number in the server's catalog; None if that is not known.
        type: its Arrow type, as text.
    """

    number: int | None
    type: str


@dataclass(frozen=True)
class TableFacts:
    """What a mirror knows of one table.

    Attributes:
        table: qualified name, quoted as in SQL.
        oid: of the relation that was loaded; 0 before the first load.
        columns: the columns of the relation, as far as the current table has taken it, by name.
        stage: `load` until a load is complete, `follow` behind it, `stopped` after an error.
        error: why it is stopped.
        history_error: why its history does not go on.
    """

    table: str
    oid: int = 0
    columns: Mapping[str, KnownColumn] = field(default_factory=dict)
    stage: Literal["load", "follow", "stopped"] = "load"
    error: str | None = None
    history_error: str | None = None


class Memory:
    """The files of a mirror.

    Args:
        store: the target.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def beginning(self) -> Beginning | None:
        """How the mirror began, None if it has not.

        Raises:
            ValueError: if the file is damaged. So do the other methods.
        """
        values = self._read(_BEGINNING)
        if values is None:
            return None
        with _damaged(self._store, _BEGINNING):
            return Beginning(**{**values, "publications": tuple(values["publications"])})

    def set_beginning(self, beginning: Beginning | None) -> None:
        """Remembers how the mirror began; None forgets it."""
        if beginning is None:
            self._store.remove(_BEGINNING)
        else:
            self._put(_BEGINNING, asdict(beginning))

    def progress(self) -> Progress | None:
        """How far all tables are, None before the end of the first load."""
        values = self._read(_PROGRESS)
        if values is None:
            return None
        with _damaged(self._store, _PROGRESS):
            return Progress(**values)

    def set_progress(self, progress: Progress) -> None:
        """Remembers how far all tables are."""
        self._put(_PROGRESS, asdict(progress))

    def tables(self) -> dict[str, TableFacts]:
        """{directory: what is known of the table}."""
        found = {}
        for name in sorted(self._store.names(_TABLES)):
            base = name.rpartition("/")[2]
            values = self._read(name) if base.endswith(".json") and not base.startswith(".") else None
            if values is not None:
                with _damaged(self._store, name):
                    columns = {key: KnownColumn(**each) for key, each in values["columns"].items()}
                    found[base.removesuffix(".json")] = TableFacts(**{**values, "columns": columns})
        return found

    def set_table(self, directory: str, facts: TableFacts) -> None:
        """Remembers what is known of a table."""
        self._put(f"{_TABLES}/{directory}.json", asdict(facts))

    def run(self) -> str | None:
        """The name of the last process that mirrored here: it may have left files."""
        values = self._read(_RUN)
        return None if values is None else str(values.get("run", ""))

    def set_run(self, run: str | None) -> None:
        """Notes the name of this process; None if it has left nothing."""
        if run is None:
            self._store.remove(_RUN)
        else:
            self._put(_RUN, {"run": run})

    def forget_tables(self) -> None:
        """Forgets all tables, and the progress."""
        for name in self._store.names(_TABLES):
            self._store.remove(name)
        self._store.remove(_PROGRESS)

    def _put(self, name: str, values: Mapping[str, Any]) -> None:
        self._store.put(name, json.dumps(values).encode())

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            content = self._store.read(name)
        except FileNotFoundError:
            return None
        with _damaged(self._store, name):
            values = json.loads(content)
            if not isinstance(values, dict):
                raise ValueError
            return values


class _damaged:  # noqa: N801  (reads like a function where it is used)
    """Explains an error of the block: a file is not what the mirror wrote."""

    def __init__(self, store: Store, name: str) -> None:
        self._what = f"{store}/{name} is damaged: restore it, or mirror into another target"

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, ValueError | KeyError | TypeError):
            raise ValueError(self._what) from None
