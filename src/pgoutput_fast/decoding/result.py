"""The result of decoding: record batches per relation version, and further tables."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from pgoutput_fast.base.display import escaped, html_table, some_of
from pgoutput_fast.catalog.identifiers import parse_qualified_name
from pgoutput_fast.catalog.relations import Relation, no_such_table
from pgoutput_fast.catalog.user_types import UserTypes
from pgoutput_fast.decoding.changed_tables import ChangedTables
from pgoutput_fast.decoding.position import Position
from pgoutput_fast.schema.evolution import EXTRA_COLUMNS, check_nulls, pin_schema, unify_schemas
from pgoutput_fast.schema.metadata_columns import metadata_fields
from pgoutput_fast.schema.resolve import decoded_schema

if TYPE_CHECKING:
    import numpy as np

    from pgoutput_fast.schema.options import Options

__all__ = ["Decoded", "RecordTables", "RelationBatch"]

# Tables shown in a notebook.
_SHOWN = 20


@dataclass(frozen=True)
class RelationBatch:
    """Changes of one relation version.

    Attributes:
        relation: the relation version that describes the columns.
        batch: the metadata columns, then the relation's columns. Rows are in the order of the messages. The options
            `batch_rows` and `batch_bytes` bound its size.

    >>> import pgoutput_fast as pgo
    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> orders, writer = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),)), Writer()
    >>> wal = writer.begin(7, 100, 0) + writer.change(orders, "insert", new=["1"]) + writer.commit(100, 108, 0)
    >>> (change,) = pgo.decode(wal).changes
    >>> change.relation.qualified_name, change.batch.num_rows, change.to_numpy()["id"].tolist()
    ('public.orders', 1, [1])
    >>> import pyarrow as pa
    >>> pa.table(change).column("id").to_pylist()  # pandas, polars, DuckDB and others take it in the same way
    [1]
    """

    relation: Relation
    batch: pa.RecordBatch

    def __repr__(self) -> str:
        rows = self.batch.num_rows
        return f"<RelationBatch: {rows:,} row{'s' * (rows != 1)} of {escaped(self.relation.qualified_name)}>"

    def __arrow_c_schema__(self) -> object:
        """The schema of `batch` by the Arrow PyCapsule protocol."""
        return self.batch.schema.__arrow_c_schema__()

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """`batch` by the Arrow PyCapsule protocol, without a copy: a capsule of the schema, and one of the array."""
        return self.batch.__arrow_c_array__(requested_schema)  # type: ignore[no-any-return]

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """`batch` as a stream of one batch by the Arrow PyCapsule protocol, without a copy."""
        return self.batch.__arrow_c_stream__(requested_schema)

    def to_numpy(self) -> dict[str, np.ndarray[Any, Any]]:
        """The columns as {name: NumPy array}. Fixed-width columns without nulls are views of the batch's memory.

        NumPy lacks the types of booleans (bits in Arrow), dates (32 bits) and decimals, so these columns are copied.

        Integers with nulls become a `numpy.ma.MaskedArray` over the same memory. In other columns nulls become NaN,
        NaT or None, as in pyarrow's `to_numpy`. A time becomes the timedelta64 since midnight.
        """
        return {
            name: _to_numpy(_without_objects(column))
            for name, column in zip(self.batch.schema.names, self.batch.columns, strict=True)
        }


def _without_objects(column: pa.Array) -> pa.Array:
    """A time as a duration, which NumPy has a type for; times would become one Python object per value."""
    return column.view(pa.duration("us")) if pa.types.is_time64(column.type) else column


def _to_numpy(column: pa.Array) -> np.ndarray[Any, Any]:
    if not pa.types.is_integer(column.type) or column.null_count == 0:
        return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    import numpy as np

    # pyarrow would convert them to floats, which changes large integers. Arrow and NumPy use the same names of integer
    # types; pyarrow's own conversion of types needs pandas.
    whole = np.frombuffer(column.buffers()[1], np.dtype(str(column.type)))
    values = whole[column.offset : column.offset + len(column)]
    return np.ma.MaskedArray(values, column.is_null().to_numpy(zero_copy_only=False))


class Decoded:
    """The result of a call: `changes`, `transactions`, `outcomes`, `truncates`, `messages` and `rejects`.

    All tables but the changes are built on first use. Iteration yields the batches of `changes`, and `len` is their
    number. A result is always true, even without changes. `decoded["public.orders"]` is
    `decoded.table("public.orders")`, and `tables` has the tables with changes by name.

    >>> import pgoutput_fast as pgo
    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> orders, writer = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),)), Writer()
    >>> wal = writer.begin(7, 100, 0) + writer.change(orders, "insert", new=["1"]) + writer.commit(100, 108, 0)
    >>> decoded = pgo.decode(wal)
    >>> decoded
    <Decoded: 1 row of public.orders>
    >>> decoded.transactions.column("kind").to_pylist(), decoded.rejects.num_rows
    (['begin', 'commit'], 0)
    >>> decoded.changes[0].to_numpy()["id"]
    array([1], dtype=int32)
    >>> len(decoded), [change.relation.name for change in decoded], decoded["public.orders"].num_rows
    (1, ['orders'], 1)
    >>> {name: table.num_rows for name, table in decoded.tables.items()}
    {'public.orders': 1}
    """

    def __init__(
        self,
        changes: Sequence[RelationBatch],
        records: Any,
        options: Options,
        position: Position | None = None,
    ) -> None:
        self._changes = _plain(changes) if options.plain else list(changes)
        self._records = records
        self._options = options
        self._position = position  # after a whole transaction: without the changes of this result
        self._slot: Callable[[], int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The native records live in memory of this process.
        position = self._position
        if position is not None and self._slot is not None:
            position = replace(position, slot_lsn=self._slot())
        return {
            **vars(self),
            "_records": RecordTables.of(self._records),
            "_position": position,
            "_slot": None,
        }

    def __repr__(self) -> str:
        names = [escaped(name) for name in self.tables]
        rows = sum(each.batch.num_rows for each in self._changes)
        return f"<Decoded: {rows:,} row{'s' * (rows != 1)} of {some_of(names) if names else 'no relation'}>"

    def _repr_html_(self) -> str:
        counts: dict[str, list[int]] = {}
        for each in self._changes:
            count = counts.setdefault(each.relation.qualified_name, [0, 0])
            count[0] += each.batch.num_rows
            count[1] += 1
        listed = [(name, *count) for name, count in islice(counts.items(), _SHOWN)]
        beside = ", ".join(
            f"{name} {getattr(self, name).num_rows:,}"
            for name in ("transactions", "outcomes", "truncates", "messages", "rejects")
        )
        return html_table(
            f"Decoded; rows of its other tables: {beside}",
            ["table", "rows", "batches"],
            listed,
            len(counts) - len(listed),
        )

    def __len__(self) -> int:
        return len(self._changes)

    def __bool__(self) -> bool:
        # A result without changes may have transactions, messages and rejects.
        return True

    def __iter__(self) -> Iterator[RelationBatch]:
        return iter(self._changes)

    def __getitem__(self, table: str | int) -> pa.Table:
        return self.table(table)

    @property
    def tables(self) -> Mapping[str, pa.Table]:
        """The tables with changes in this result by qualified name, built by `table` on access."""
        rows: dict[Relation, int] = {}
        for each in self._changes:
            rows[each.relation] = rows.get(each.relation, 0) + each.batch.num_rows
        return ChangedTables(rows, self.table)

    @property
    def changes(self) -> list[RelationBatch]:
        """One batch per relation version, or several if it is large. Versions are in first-seen order."""
        return self._changes

    @property
    def position(self) -> Position | None:
        """The position after this result, at which `follow(after=)` resumes.

        Store it with the changes. None with `transactions="as_sent"`, where commits are not known.
        """
        position = self._position
        if position is None or position.slot_lsn is None:
            return position
        changes = position.changes + self._count_changes(position.commit_lsn)
        slot_lsn = position.slot_lsn if self._slot is None else self._slot()
        return replace(position, changes=changes, slot_lsn=slot_lsn)

    def _count_changes(self, commit_lsn: int) -> int:
        """Number of change messages of one transaction with rows in this result."""
        # Imported lazily: it takes longer to import than this whole package.
        import pyarrow.compute as pc

        prefix = self._options.metadata_prefix
        seqs = [
            each.batch.column(f"{prefix}seq").filter(
                pc.equal(each.batch.column(f"{prefix}commit_lsn"), commit_lsn)
            )
            for each in self._changes
        ]
        return pc.count_distinct(pa.chunked_array(seqs, pa.int64())).as_py()  # type: ignore[no-any-return]

    @property
    def is_complete(self) -> bool:
        """Whether the last transaction in this result is complete. If not, the next result continues it."""
        position = self._position
        return (
            position is None
            or position.slot_lsn is not None
            or not (position.changes or position.last_message_lsn)
        )

    @property
    def is_between_transactions(self) -> bool:
        """Whether all commits so far are delivered: no part of a transaction remains for the next result."""
        return self._position is None or self._position.slot_lsn is not None

    def at_slot(self, lsn: Callable[[], int], before: Position | None) -> Decoded:
        """Sets the reader's slot and the position before this result.

        Args:
            lsn: returns the LSN at which the slot may resume after this result. It is called when `position` is read.
            before: position of the previous result; None if it was not read.
        """
        position = self._position
        if position is not None and position.slot_lsn is not None:
            self._slot = lsn
            if before is not None and before.commit_lsn == position.commit_lsn and not self._changes:
                self._position = replace(position, changes=before.changes)
        return self

    @property
    def transactions(self) -> pa.RecordBatch:
        """A row per boundary message: TRANSACTIONS_SCHEMA."""
        return self._records.transactions

    @property
    def outcomes(self) -> pa.RecordBatch:
        """A row per transaction or subtransaction whose outcome became known: OUTCOMES_SCHEMA."""
        return self._records.outcomes

    @property
    def truncates(self) -> pa.RecordBatch:
        """A row per Truncate message: TRUNCATES_SCHEMA."""
        return self._records.truncates

    @property
    def messages(self) -> pa.RecordBatch:
        """A row per logical decoding message: MESSAGES_SCHEMA."""
        return self._records.messages

    @property
    def rejects(self) -> pa.RecordBatch:
        """A row per message that could not be decoded, and per value without an Arrow form: REJECTS_SCHEMA."""
        return self._records.rejects

    def table(
        self,
        table: str | int,
        schema: pa.Schema | Relation | None = None,
        extra_columns: Literal["error", "drop"] | None = None,
    ) -> pa.Table:
        """All changes of one relation as one table, in the order in which to apply them; empty if there are none.

        Args:
            table: a qualified name, quoted as in SQL, or an oid. A name selects the versions that had this name when
                the change was sent. An oid selects all versions of that relation.
            schema: the columns after the metadata columns, by name: an Arrow schema, or a relation version with these
                columns. Columns that a version lacks are null. Types are widened, never narrowed. The default is the
                table's schema in `Options(schemas=...)`. Without one the versions are unified, in the column order of
                the newest version.
            extra_columns: what to do with a column that the pinned schema lacks: `"error"` raises, `"drop"` leaves it
                out. The default is the option `extra_columns`.

        If the decoder knows the relation but has no changes of it, the table is empty. Its schema is then that of all
        known versions, unified or pinned as for changes. If no schema fits all of them, it is the schema of the version
        described last.

        Raises:
            KeyError: for an unknown relation; the error lists the nearest known names.
            ValueError: if no table can hold all versions, or if a version does not fit the pinned schema; `changes`
                still has every version. Also if a column has the name of a metadata column, or if
                `Options(columns=...)` names a column that no version has.
        """
        batches = [each for each in self._changes if _matches(each.relation, table)]
        known: list[Relation] = [] if batches else self._records.known
        versions = [relation for relation in known if _matches(relation, table)]
        if not batches and not versions:
            raise KeyError(no_such_table(table, (*known, *(each.relation for each in self._changes))))
        if not batches and not any(map(self._options.selects, versions)):
            raise KeyError(f"Options(tables=...) leaves out {table}")
        extra_columns = self._options.extra_columns if extra_columns is None else extra_columns
        if extra_columns not in EXTRA_COLUMNS:
            raise ValueError(f"extra_columns must be 'error' or 'drop', not {extra_columns!r}")
        schema = self._options.pinned(table) if schema is None else schema
        if schema is not None and not isinstance(schema, pa.Schema | Relation):
            raise TypeError(f"schema must be a pyarrow Schema or a Relation, not {type(schema).__name__}")
        if isinstance(schema, Relation):
            schema = decoded_schema(schema, self._options, self._records.types)
        if not batches:
            return _schema_without_rows(versions, self._options, schema, self._records.types).empty_table()
        return concat_in_order(batches, self._options, schema, extra_columns)


@dataclass(frozen=True)
class RecordTables:
    """A picklable copy of all that a Decoded has in addition to its changes."""

    transactions: pa.RecordBatch
    outcomes: pa.RecordBatch
    truncates: pa.RecordBatch
    messages: pa.RecordBatch
    rejects: pa.RecordBatch
    known: list[Relation]
    types: UserTypes

    @classmethod
    def of(cls, records: Any) -> RecordTables:
        return cls(*(getattr(records, each.name) for each in fields(cls)))


def _plain(changes: Sequence[RelationBatch]) -> list[RelationBatch]:
    # Imported lazily: it needs pyarrow.compute.
    from pgoutput_fast.schema.flat import flatten

    return [RelationBatch(each.relation, flatten(each.batch)) for each in changes]


def _schema_without_rows(
    versions: Sequence[Relation], options: Options, pinned: pa.Schema | None, types: UserTypes
) -> pa.Schema:
    """The schema of a table without rows, from the known versions of a relation."""
    options.check_columns(versions[-1], versions, set())
    if pinned is not None:
        # Without rows, every version fits.
        return pin_schema([], pinned, metadata_fields(options.metadata_prefix))
    schemas = [(relation, decoded_schema(relation, options, types)) for relation in versions]
    try:
        return unify_schemas(schemas)
    except ValueError:
        return schemas[-1][1]


def _matches(relation: Relation, table: str | int) -> bool:
    if not isinstance(table, str):
        return relation.oid == operator.index(table)
    return (relation.namespace, relation.name) == parse_qualified_name(table)


def concat_in_order(
    batches: Iterable[RelationBatch],
    options: Options,
    pinned: pa.Schema | None = None,
    extra_columns: str = "error",
) -> pa.Table:
    """All batches as one table, in the order in which to apply the changes, with versions unified or pinned."""
    batches = list(batches)
    prefix = options.metadata_prefix
    keys = [f"{prefix}commit_lsn"] if options.transactions == "committed" else []
    keys.append(f"{prefix}seq")
    # Keyed by relation, not by version id: relations with one id may differ in the names of their types. A version can
    # return, so the newest version is that of the last row.
    last: dict[Relation, list[int]] = {}
    for each in batches:
        at = [each.batch.column(key)[-1].as_py() for key in keys]
        last[each.relation] = max(at, last.get(each.relation, at))
    schemas = {each.relation: each.batch.schema for each in batches}
    versions = [(relation, schemas[relation]) for relation in sorted(last, key=lambda each: last[each])]
    if pinned is None:
        schema = unify_schemas(versions)
    else:
        schema = pin_schema(versions, pinned, metadata_fields(prefix), extra_columns)
    whole = _concat([each.batch for each in batches], schema)
    check_nulls(whole, schema, versions[-1][0].qualified_name)
    return _sorted(whole, keys)


def _concat(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Concatenates the batches, with the columns and types of their unified schema.

    This works column by column. Gaps in a column are slices of one array of nulls per type, so the cost depends on the
    columns that the batches have, not on the number of batches times all columns.
    """
    pieces: dict[str, list[tuple[int, pa.Array]]] = {field.name: [] for field in schema}
    row = 0
    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name in pieces:
                pieces[name].append((row, column))
        row += batch.num_rows
    nulls: dict[pa.DataType, pa.Array] = {}
    columns = []
    for field in schema:
        chunks: list[pa.Array] = []
        end = 0
        for start, column in [*pieces[field.name], (row, None)]:
            if start > end:
                if field.type not in nulls:
                    nulls[field.type] = pa.nulls(row, field.type)
                chunks.append(nulls[field.type].slice(end, start - end))
            if column is not None:
                chunks.append(column if column.type.equals(field.type) else column.cast(field.type))
                end = start + len(column)
        columns.append(pa.chunked_array(chunks, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """The batch with the columns and types of a unified schema. Columns that the batch lacks are null."""
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _sorted(table: pa.Table, keys: list[str]) -> pa.Table:
    """The table, sorted by int64 columns. Rows with the same keys, such as pre- and postimage, keep their order."""
    import numpy as np

    values = [table.column(key).combine_chunks().fill_null(-1).to_numpy() for key in keys]
    if len(values) == 1 and bool(np.all(values[0][1:] >= values[0][:-1])):
        return table
    order = np.lexsort(values[::-1])
    if bool(np.all(order[1:] > order[:-1])):
        return table
    return table.take(pa.array(order))
