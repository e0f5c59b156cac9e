"""The state of a mirror outside its tables, in small files that are replaced whole.

Tables store their own positions. These files store the rest: how the mirror began, where to begin to read the segments,
and the errors of tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.mirror.state.layout import OWN
from pgoutput_fast.mirror.state.table_record import TableRecord, parsed_record
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.errors import MirrorError
from pgoutput_fast.tables.formats import names_of
from pgoutput_fast.tables.naming import Naming
from pgoutput_fast.tables.options import TableOptions

__all__ = [
    "Beginning",
    "MirrorState",
    "Progress",
    "SeenEntries",
    "SeenPublication",
    "SeenPublications",
]

_BEGINNING, _PROGRESS, _TABLES = f"{OWN}/beginning.json", f"{OWN}/progress.json", f"{OWN}/tables"
_RUN, _LEFT, _HISTORY_LSN, _CLEANED = (f"{OWN}/{name}.json" for name in ("run", "left", "reached", "cleaned"))
_ENTRIES, _PUBLICATIONS = f"{OWN}/entries.json", f"{OWN}/publications.json"

Stage: TypeAlias = Literal["slot", "load", "done", "new slot", "repair"]


@dataclass(frozen=True)
class Beginning:
    """How a mirror began.

    Attributes:
        slot: the slot's name.
        publications: their names, sorted.
        format: of the current tables.
        segments: the directory of the segments, if it is not the one in the target.
        stage: `slot` while the slot is created, `done` after that (in earlier versions of this package, `load` before
            it, during the first load). `new slot` while a slot is created in place of a lost one, `repair` while the
            tables are compared with the server.
        made: whether the mirror made the slot.
        lsn: `slot`, `new slot`: the end of the server's WAL before. Else the position at which the slot begins.
        iceberg_catalog: the catalog of the current tables, without credentials; None for none, or the one in the
            target.
        source: the system identifier of the server, and the name of the database; None if the mirror is older than this
            field.
        namespace: prefix of the schemas' names in the target.
        lost: why the slot can never go on, as reported by a capture; None if it can, as far as is known.
        types: the options that decide types of columns, as text; None if the mirror is older than this field.
    """

    slot: str
    publications: tuple[str, ...]
    format: str
    segments: str | None
    stage: Stage
    made: bool
    lsn: int
    iceberg_catalog: str | None = None
    source: tuple[str, str] | None = None
    lost: str | None = None
    namespace: str = ""
    types: str | None = None

    def at(self, stage: Stage, lsn: int) -> Beginning:
        """The same mirror at another stage."""
        return replace(self, stage=stage, lsn=lsn)

    def table_options(self, options: TableOptions) -> TableOptions:
        """A reader's options, with the names of the tables of this mirror."""
        return replace(options, naming=Naming(self.namespace))


@dataclass(frozen=True)
class Progress:
    """The progress of all tables.

    Attributes:
        last_seq: ordinal of the last message of the last segment that all tables have; -1 for none.
        next_seq: ordinal of the next message.
        lsn: all commits up to this LSN are in all tables.
        time: of the last of these commits, in microseconds since 1970; None if no commit is known.
        stream: how many slots were lost before. The segments of every slot have their own directory and their own
            ordinals.
    """

    last_seq: int
    next_seq: int
    lsn: int
    time: int | None = None
    stream: int = 0


@dataclass(frozen=True)
class SeenEntries:
    """The entries of all publications of the database at a check.

    Attributes:
        oids: of the entries.
        count: how many were ever inserted, by the server's statistics, plus those of `oids` not counted there yet.
        since: the start of these statistics.
        unseen: how many entries no check has seen.
    """

    oids: tuple[int, ...]
    count: int
    since: str
    unseen: int


@dataclass(frozen=True)
class SeenPublication:
    """A publication at a check.

    Attributes:
        xmin: the transaction that last altered it.
        sends: what it sends, without its tables.
        mark: stands for it in fingerprints. It stays if an alteration changed nothing of what is sent.
        is_single: whether `mark` stayed because the server counted a single alteration. It may count another one later.
    """

    xmin: str
    sends: str
    mark: str
    is_single: bool = False


@dataclass(frozen=True)
class SeenPublications:
    """All publications of the database at a check.

    Attributes:
        rows: of the publications, by oid as text.
        count: how many alterations the server has counted.
        since: the start of these statistics.
        waits: whether a later check saw more alterations than the server had counted. The next one decides.
    """

    rows: Mapping[str, SeenPublication]
    count: int
    since: str
    waits: bool = False


class MirrorState:
    """The files of a mirror.

    Args:
        store: the target.
        check: called before each change.
    """

    def __init__(self, store: Store, check: Callable[[], object] | None = None) -> None:
        self._store, self._check = store, check

    def beginning(self) -> Beginning | None:
        """How the mirror began, None if it has not.

        Raises:
            ValueError: if the file is damaged, as in the other methods.
            MirrorError: if this version of the package lacks the format of the current tables.
        """
        values = self._read(_BEGINNING)
        if values is None:
            return None
        with _damaged(self._store, _BEGINNING):
            source = values.get("source")
            names = {"publications": tuple(values["publications"]), "source": source and tuple(source)}
            beginning = Beginning(**{**values, **names})
        if beginning.format not in names_of("current"):
            raise MirrorError(
                f"the current tables in {self._store} have the format {beginning.format!r}, which this version of "
                "pgoutput_fast lacks. Mirror into a new target with format='delta' (--format delta), which loads all "
                "tables. Let it take the slot over with adopt=True (--adopt), or drop the slot first (pgoutput-fast "
                "slots drop)"
            )
        return beginning

    def begun(self, options: TableOptions) -> Beginning:
        """How the mirror began, for readers of its tables.

        Args:
            options: how the reader reaches them.

        Raises:
            LookupError: if it has not begun.
            ValueError: if the reader needs a catalog, or if the file is damaged.
        """
        found = self.beginning()
        if found is None:
            raise LookupError(
                f"{self._store} is not the target of a mirror, or its first load has not begun: name the target of "
                "the mirror, or run the mirror"
            )
        if found.iceberg_catalog is not None and options.catalog_place is None:
            raise ValueError(
                f"the current tables of {self._store} are in the catalog {found.iceberg_catalog}: pass "
                "iceberg_catalog= with its properties"
            )
        return found

    def set_beginning(self, beginning: Beginning | None) -> None:
        """Remembers how the mirror began; None forgets it."""
        if beginning is None:
            self._store.remove(_BEGINNING)
        else:
            self._put(_BEGINNING, asdict(beginning))

    def progress(self) -> Progress | None:
        """The progress of all tables, None before the slot is made."""
        values = self._read(_PROGRESS)
        if values is None:
            return None
        with _damaged(self._store, _PROGRESS):
            return Progress(**values)

    def set_progress(self, progress: Progress) -> None:
        """Remembers the progress of all tables."""
        self._put(_PROGRESS, asdict(progress))

    def tables(self) -> dict[str, TableRecord]:
        """{directory: state of the table}."""
        found = {}
        for name in sorted(self._store.names(_TABLES)):
            base = name.rpartition("/")[2]
            values = self._read(name) if base.endswith(".json") and not base.startswith(".") else None
            if values is not None:
                with _damaged(self._store, name):
                    found[base.removesuffix(".json")] = parsed_record(values)
        return found

    def table(self, directory: str) -> TableRecord | None:
        """The state of one table, None if it is not mirrored."""
        name = _table(directory)
        values = self._read(name)
        if values is None:
            return None
        with _damaged(self._store, name):
            return parsed_record(values)

    def set_table(self, directory: str, record: TableRecord) -> None:
        """Remembers the state of a table."""
        self._put(_table(directory), asdict(record))

    def forget_table(self, directory: str) -> None:
        """Forgets one table."""
        self._store.remove(_table(directory))

    def history_lsn(self) -> int | None:
        """The LSN up to which all histories have all commits. None if unknown."""
        values = self._read(_HISTORY_LSN)
        if values is None:
            return None
        with _damaged(self._store, _HISTORY_LSN):
            return int(values["lsn"])

    def set_history_lsn(self, lsn: int) -> None:
        """Remembers this LSN."""
        self._put(_HISTORY_LSN, {"lsn": lsn})

    def entries(self) -> SeenEntries | None:
        """The entries of publications at the last check; None if there was none."""
        values = self._read(_ENTRIES)
        if values is None:
            return None
        with _damaged(self._store, _ENTRIES):
            return SeenEntries(**{**values, "oids": tuple(values["oids"])})

    def set_entries(self, entries: SeenEntries) -> None:
        """Remembers the entries of publications at a check."""
        self._put(_ENTRIES, asdict(entries))

    def publications(self) -> SeenPublications | None:
        """The publications at the last check; None if there was none."""
        values = self._read(_PUBLICATIONS)
        if values is None:
            return None
        with _damaged(self._store, _PUBLICATIONS):
            rows = {oid: SeenPublication(**each) for oid, each in values["rows"].items()}
            return SeenPublications(**{**values, "rows": rows})

    def set_publications(self, publications: SeenPublications) -> None:
        """Remembers the publications at a check."""
        self._put(_PUBLICATIONS, asdict(publications))

    def run(self) -> str | None:
        """The name of the last process that mirrored here: it may have left files."""
        values = self._read(_RUN)
        return None if values is None else str(values.get("run", ""))

    def set_run(self, run: str | None) -> None:
        """Notes the name of this process; None if it left nothing."""
        if run is None:
            self._store.remove(_RUN)
        else:
            self._put(_RUN, {"run": run})

    def left_runs(self) -> dict[str, float]:
        """{process: when it was noticed, in seconds since 1970} of earlier processes whose files had to stay.

        A commit of theirs may still add them.
        """
        values = self._read(_LEFT)
        if values is None:
            return {}
        with _damaged(self._store, _LEFT):
            return {str(run): float(seen) for run, seen in dict(values["runs"]).items()}

    def set_left_runs(self, runs: Mapping[str, float]) -> None:
        """Remembers these."""
        if runs:
            self._put(_LEFT, {"runs": dict(runs)})
        else:
            self._store.remove(_LEFT)

    def cleaned(self) -> float | None:
        """When files that no point needs were last removed, in seconds since 1970. None if unknown."""
        values = self._read(_CLEANED)
        if values is None:
            return None
        with _damaged(self._store, _CLEANED):
            return float(values["time"])

    def set_cleaned(self, time: float) -> None:
        """Remembers when files that no point needs were removed."""
        self._put(_CLEANED, {"time": time})

    def begin_again(self) -> None:
        """Forgets tables and progress, but not which histories belong to this mirror."""
        for directory, record in self.tables().items():
            if record.knows_history:
                self.set_table(
                    directory, TableRecord(record.table, error="its load was interrupted", owns_history=True)
                )
            else:
                self.forget_table(directory)
        self._store.remove(_PROGRESS)
        self._store.remove(_HISTORY_LSN)

    def _put(self, name: str, values: Mapping[str, Any]) -> None:
        if self._check is not None:
            self._check()
        self._store.put(name, json.dumps(values).encode())

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            content = self._store.read(name)
        except FileNotFoundError:
            return None
        with _damaged(self._store, name):
            values = parsed_json(content)
            if not isinstance(values, dict):
                raise ValueError
            return values


def _table(directory: str) -> str:
    return f"{_TABLES}/{directory}.json"


class _damaged:  # noqa: N801  (used like a function)
    """Explains an error of the block: the file is damaged."""

    def __init__(self, store: Store, name: str) -> None:
        self._what = f"{store}/{name} is damaged: restore it, or mirror into another target"

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, ValueError | LookupError | TypeError | AttributeError):
            raise ValueError(self._what) from None
