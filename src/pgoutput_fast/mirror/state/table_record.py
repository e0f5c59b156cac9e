"""What a mirror knows of one table, and how it is read from a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from pgoutput_fast.merge.effect.renames import Rename, all_names
from pgoutput_fast.mirror.schema_changes.fingerprint import Fingerprint

__all__ = [
    "NEW",
    "UNPUBLISHED",
    "Alteration",
    "Gap",
    "KnownColumn",
    "TableRecord",
    "parsed_record",
]

# Why a table that is no longer published is stopped. If it is published again, it is loaded.
UNPUBLISHED = "it is not published any more"
# Why a table that the mirror has never loaded must be loaded.
NEW = "it is new"


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


def parsed_record(values: Mapping[str, Any]) -> TableRecord:
    """Returns the record of a table that was written with `dataclasses.asdict`.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: if the values are not those of a record.
    """
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
