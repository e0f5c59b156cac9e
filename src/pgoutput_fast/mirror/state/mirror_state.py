"""The state of a mirror outside its tables, in small files that are replaced whole.

Tables store their own positions. These files store the rest: how the mirror began, where to begin to read the segments,
and the errors of tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.merge.effect.renames import Rename, all_names
from pgoutput_fast.mirror.schema_changes.fingerprint import Fingerprint
from pgoutput_fast.mirror.state.layout import OWN
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.errors import MirrorError
from pgoutput_fast.tables.formats import names_of
from pgoutput_fast.tables.naming import Naming
from pgoutput_fast.tables.options import TableOptions

__all__ = [
    "NEW",
    "UNPUBLISHED",
    "Alteration",
    "Beginning",
    "KnownColumn",
    "MirrorState",
    "Progress",
    "SeenEntries",
    "SeenPublication",
    "SeenPublications",
    "TableRecord",
]

# Why a table that is no longer published is stopped. If it is published again, it is loaded.
UNPUBLISHED = "it is not published any more"
# Why a table that the mirror has never loaded must be loaded.
NEW = "it is new"

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


@dataclass(frozen=True)
class KnownColumn:
    """A column of a current table.

    Attributes:
        number: its number in the server's catalog; None if unknown.
        type: its Arrow type, as text.
        since: (LSN of the commit, ordinal) of the first change or of the load that has it; None if the table began with
            it.
        missing: the value of older rows, as the server prints it; None for null.
        former: the column that has the values of older rows, because it was renamed; None for none.
    """

    number: int | None
    type: str
    since: tuple[int, int] | None = field(default=None, compare=False)
    missing: str | None = field(default=None, compare=False)
    former: str | None = field(default=None, compare=False)


class Alteration(NamedTuple):
    """The columns of a table before a change that has other ones.

    Attributes:
        since: (LSN of the commit, ordinal) of the change.
        columns, shapes: as in `TableRecord`.
    """

    since: tuple[int, int]
    columns: Mapping[str, KnownColumn]
    shapes: Sequence[tuple[int, tuple[str, ...]]]


class Gap(NamedTuple):
    """A range of LSNs in which the content of a table is unknown, because it was loaded or repaired.

    Attributes:
        begin, end: the LSNs.
        time: the server's time when it was at `end` or later, in microseconds since 1970; None if unknown.
    """

    begin: int
    end: int
    time: int | None = None


@dataclass(frozen=True)
class TableRecord:
    """The state of one table of a mirror.

    Attributes:
        table: qualified name, quoted as in SQL.
        oid: of the relation that was loaded; 0 before the first load.
        columns: the columns of the relation, as far as the current table has them, by name.
        stage: `load` until a load is complete, `follow` after it, `stopped` after an error.
        error: why it is stopped.
        history_error: why its history is stopped.
        keys: (LSN, key) for every change of the key: transactions that commit at this LSN or later have this key, up to
            the next entry. The key is empty if only whole rows identify rows.
        shapes: (LSN, names of the columns) for every removal of columns: transactions that commit at this LSN or later
            have these columns, up to the next entry. Columns that were only added are in the entry before, too. Empty
            if no column was ever removed.
        gaps: of all loads and repairs: inside them, history and current tables do not give the table.
        fingerprint: the table in the server's catalogs at its load, with later differences that change no row; None if
            the mirror is older than fingerprints.
        owns_history: whether this mirror starts, or has started, the history of the table. If not, an unknown one may
            exist.
        rejects: how many values and changes its rejects have.
        truncated: whether the stream had a TRUNCATE of it since the fingerprint.
        new_file: (the new file, the end of the server's WAL, a horizon) when a check first saw another file than that
            of the fingerprint. A TRUNCATE that made the file is in the stream up to that LSN. Rows of transactions
            before the horizon were in the old file.
        awaited: (the end of the server's WAL, the names) when a check first saw new columns with values in older rows
            that no change has had. Changes up to that LSN may not have them.
        attached: (the end of the server's WAL, the partitions) when a check first saw that they were attached and are
            empty. The stream has their changes until then up to that LSN.
        partitions: {oids of a root and a partition: (LSN of a commit, name)} of the partitions that the stream has
            changes of, and that the root had not at the last check. The next one decides, also for other tables that
            may have the partition, or be it.
        lost_lsn: while it waits for a load, the LSN of the last commit with a change that could not be decoded; -1 for
            none. The load cannot use ranges of the table that were read before.
        altered: the last alterations of columns, as long as a crash may let the changes before them be read again.
        renames: the columns that got another name in place in the current table, in order, and new ones with a former
            name.
        renamed: the qualified name that it has got on the server since its load; None if that is still `table`.
        is_first: whether it waits for the first load of the mirror, with which its history begins. Before that, the
            history has only what the load needs if it is interrupted.
    """

    table: str
    oid: int = 0
    columns: Mapping[str, KnownColumn] = field(default_factory=dict)
    stage: Literal["load", "follow", "stopped"] = "load"
    error: str | None = None
    history_error: str | None = None
    keys: Sequence[tuple[int, tuple[str, ...]]] = ()
    gaps: Sequence[Gap] = ()
    shapes: Sequence[tuple[int, tuple[str, ...]]] = ()
    fingerprint: Fingerprint | None = None
    owns_history: bool = False
    rejects: int = 0
    truncated: bool = False
    new_file: tuple[int, int, int] | None = None
    awaited: tuple[int, tuple[str, ...]] | None = None
    attached: tuple[int, tuple[str, ...]] | None = None
    partitions: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    lost_lsn: int = -1
    is_first: bool = False
    renamed: str | None = None
    altered: Sequence[Alteration] = ()
    renames: Sequence[Rename] = ()

    @property
    def on_server(self) -> str:
        """Its qualified name on the server."""
        return self.renamed or self.table

    @property
    def knows_history(self) -> bool:
        """Whether an existing history belongs to this mirror."""
        return self.owns_history or self.oid != 0

    @property
    def is_unpublished(self) -> bool:
        """Whether it is stopped only because it is no longer published: nothing is wrong with it."""
        return self.stage == "stopped" and self.error == UNPUBLISHED

    def key_at(self, lsn: int) -> tuple[str, ...] | None:
        """The key of the changes that commit at an LSN; None if unknown.

        >>> record = TableRecord("public.orders", keys=[(10, ("id",)), (20, ())])
        >>> record.key_at(9), record.key_at(19), record.key_at(20)
        (None, ('id',), ())
        """
        return next((key for begin, key in reversed(self.keys) if begin <= lsn), None)

    @property
    def last_key(self) -> int:
        """The LSN from which on the newest key is known; -1 without a key.

        >>> TableRecord("public.orders", keys=[(10, ("id",)), (20, ())]).last_key
        20
        """
        return self.keys[-1][0] if self.keys else -1

    def before(self, first: tuple[int, int]) -> TableRecord:
        """The record before a change that is read again after a crash; the same if it is read for the first time.

        Args:
            first: (LSN of the commit, ordinal) of the change.

        >>> columns = {"id": KnownColumn(1, "int32")}
        >>> record = TableRecord("public.orders", columns=columns, altered=[Alteration((20, 3), {}, ())])
        >>> len(record.before((20, 3)).columns), record.before((20, 4)) is record
        (0, True)
        """
        undone = next((each for each in self.altered if each.since >= first), None)
        return self if undone is None else replace(self, columns=undone.columns, shapes=undone.shapes)

    def gaps_and_keys_since(
        self, lsn: int
    ) -> tuple[tuple[Gap, ...], tuple[tuple[int, tuple[str, ...]], ...]]:
        """`gaps` that end after an LSN, and the `keys` of the changes that commit at this LSN or later.

        >>> keys = [(10, ("id",)), (20, ()), (40, ("id",))]
        >>> record = TableRecord("public.orders", gaps=[Gap(1, 5), Gap(15, 30)], keys=keys)
        >>> record.gaps_and_keys_since(25)
        ((Gap(begin=15, end=30, time=None),), ((20, ()), (40, ('id',))))
        """
        before = [each for each in self.keys if each[0] <= lsn]
        keys = (*before[-1:], *(each for each in self.keys if each[0] > lsn))
        return tuple(each for each in self.gaps if each.end > lsn), keys

    def shape_at(self, lsn: int) -> tuple[int, tuple[str, ...]]:
        """The entry of `shapes`, (LSN, columns), for changes that commit at an LSN.

        >>> record = TableRecord("public.orders", shapes=[(-1, ("id", "note")), (20, ("id",))])
        >>> record.shape_at(19), record.shape_at(20)
        ((-1, ('id', 'note')), (20, ('id',)))
        """
        shapes = self.shapes or [(-1, tuple(self.columns))]
        return next((each for each in reversed(shapes) if each[0] <= lsn), shapes[0])

    def shapes_with(self, columns: Iterable[str], lsn: int) -> Sequence[tuple[int, tuple[str, ...]]]:
        """`shapes` if the relation has other columns from an LSN on.

        >>> record = TableRecord("public.orders", shapes=[(-1, ("id", "note")), (20, ("id",))])
        >>> record.shapes_with(["id", "at"], 30)
        ((-1, ('id', 'note')), (20, ('id', 'at')))
        >>> record.shapes_with(["id", "note"], 30)
        ((-1, ('id', 'note')), (20, ('id',)), (30, ('id', 'note')))
        """
        shapes = tuple(self.shapes) or ((-1, tuple(self.columns)),)
        names, known = tuple(columns), {name for _, each in shapes for name in each}
        begin, last = shapes[-1]
        new = set(names) - set(last)
        # A new column is null in all older rows, so it makes no difference for them.
        if set(last) <= set(names) and not new & known:
            return (*shapes[:-1], (begin, names)) if self.shapes else ()
        return (*shapes, (lsn, names))

    def renames_with(
        self, columns: Mapping[str, KnownColumn], since: tuple[int, int], *, in_place: bool
    ) -> tuple[Rename, ...]:
        """`renames` if the relation has other columns from a change on.

        Args:
            columns: the columns.
            since: (LSN of the commit, ordinal) of the change.
            in_place: whether a renamed column gets its name in place.

        >>> record = TableRecord("public.orders", columns={"b": KnownColumn(2, "string")})
        >>> record.renames_with({"c": KnownColumn(2, "string", former="b")}, (20, 3), in_place=True)
        (Rename(lsn=20, ordinal=3, former='b', name='c'),)
        """
        known = all_names(self.renames)
        new = {name: each.former for name, each in columns.items() if name not in self.columns}
        pairs = [(former if in_place and former else "", name) for name, former in new.items()]
        found = [Rename(*since, former, name) for former, name in pairs if former or name in known]
        return (*self.renames, *found)

    def altered_by(
        self, columns: Mapping[str, KnownColumn], since: tuple[int, int], done: int, *, in_place: bool
    ) -> TableRecord:
        """The record if the relation has other columns from a change on.

        Args:
            columns, since, in_place: as for `renames_with`.
            done: both the history and the current table have the commits up to this LSN.
        """
        waiting = [each for each in self.altered if each.since[0] > done]
        return replace(
            self,
            columns=columns,
            shapes=self.shapes_with(columns, since[0]),
            altered=(*waiting, Alteration(since, self.columns, self.shapes)),
            renames=self.renames_with(columns, since, in_place=in_place),
        )

    def renames_between(self, after: int, through: int) -> list[Rename]:
        """`renames` by changes that commit after an LSN and up to another one."""
        return [each for each in self.renames if after < each.lsn <= through]

    def loaded(
        self, oid: int, columns: dict[str, KnownColumn], gap: Gap, begin: int, fingerprint: Fingerprint | None
    ) -> TableRecord:
        """The record after a load, as for `MirroredTable.loaded`."""
        known = self.columns or columns
        columns = {
            name: each if name in known else replace(each, since=(gap.end, -1))
            for name, each in columns.items()
        }
        return replace(
            self,
            oid=oid,
            columns=columns,
            stage="follow",
            error=None,
            gaps=(*self.gaps, gap),
            shapes=self.shapes_with(columns, gap.end) if self.columns else self.shapes,
            renames=self.renames_with(columns, (gap.end, -2), in_place=False),
            fingerprint=fingerprint,
            truncated=False,
            new_file=None,
            awaited=None,
            attached=None,
            partitions={oids: each for oids, each in self.partitions.items() if each[0] > begin},
            is_first=False,
            altered=(),
        )


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
                    found[base.removesuffix(".json")] = _facts(values)
        return found

    def table(self, directory: str) -> TableRecord | None:
        """The state of one table, None if it is not mirrored."""
        name = _table(directory)
        values = self._read(name)
        if values is None:
            return None
        with _damaged(self._store, name):
            return _facts(values)

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


def _facts(values: Mapping[str, Any]) -> TableRecord:
    columns = _columns(values["columns"])
    keys = tuple((int(lsn), tuple(key)) for lsn, key in values.get("keys", ()))
    gaps = tuple(Gap(*each) for each in values.get("gaps", ()))
    shapes = _shapes(values.get("shapes", ()))
    renames = tuple(
        Rename(int(lsn), int(ordinal), str(former), str(name))
        for lsn, ordinal, former, name in values.get("renames", ())
    )
    altered = tuple(
        Alteration((int(lsn), int(ordinal)), _columns(before), _shapes(shapes_before))
        for (lsn, ordinal), before, shapes_before in values.get("altered", ())
    )
    known, new_file = (values.get(name) for name in ("fingerprint", "new_file"))
    awaited, attached = (values.get(name) for name in ("awaited", "attached"))
    partitions = {}
    for oids, (lsn, name) in dict(values.get("partitions", {})).items():
        root, leaf = map(int, oids.split("/"))
        partitions[f"{root}/{leaf}"] = int(lsn), str(name)
    fingerprint = None if known is None else Fingerprint.from_dict(known)
    if not isinstance(values.get("renamed"), str | None):
        raise TypeError("a name must be a text")
    return TableRecord(
        **{
            **values,
            "columns": columns,
            "keys": keys,
            "gaps": gaps,
            "shapes": shapes,
            "altered": altered,
            "renames": renames,
            "fingerprint": fingerprint,
            "new_file": new_file and tuple(new_file),
            "partitions": partitions,
            "attached": attached and (int(attached[0]), tuple(attached[1])),
            "awaited": awaited and (int(awaited[0]), tuple(awaited[1])),
        }
    )


def _columns(values: Mapping[str, Any]) -> dict[str, KnownColumn]:
    return {
        key: KnownColumn(**{**each, "since": each.get("since") and tuple(each["since"])})
        for key, each in dict(values).items()
    }


def _shapes(values: Iterable[Any]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    return tuple((int(lsn), tuple(names)) for lsn, names in values)


class _damaged:  # noqa: N801  (used like a function)
    """Explains an error of the block: the file is damaged."""

    def __init__(self, store: Store, name: str) -> None:
        self._what = f"{store}/{name} is damaged: restore it, or mirror into another target"

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, ValueError | LookupError | TypeError | AttributeError):
            raise ValueError(self._what) from None
