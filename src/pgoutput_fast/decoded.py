"""What decoding gives: record batches per relation version, and the tables beside them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from pgoutput_fast.catalog import Relation, no_such_table
from pgoutput_fast.names import parse_qualified_name
from pgoutput_fast.schema import metadata_fields, relation_schema
from pgoutput_fast.types import column_type_of
from pgoutput_fast.unify import EXTRA_COLUMNS, pin_schema, unify_schemas
from pgoutput_fast.user_types import UserTypes

if TYPE_CHECKING:
    import numpy as np

    from pgoutput_fast.options import Options

__all__ = ["Decoded", "RelationBatch"]


@dataclass(frozen=True)
class RelationBatch:
    """Changes of one relation version.

    Attributes:
        relation: the version that describes the columns.
        batch: metadata columns, then the relation's; bounded in rows and bytes, in the order of the messages.

    >>> import pgoutput_fast as pgo
    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> orders, writer = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),)), Writer()
    >>> wal = writer.begin(7, 100, 0) + writer.change(orders, "insert", new=["1"]) + writer.commit(100, 108, 0)
    >>> (change,) = pgo.decode(wal).changes
    >>> change.relation.qualified_name, change.batch.num_rows, change.to_numpy()["id"].tolist()
    ('public.orders', 1, [1])
    """

    relation: Relation
    batch: pa.RecordBatch

    def to_numpy(self) -> dict[str, np.ndarray[Any, Any]]:
        """{column: array}. Fixed-width columns without nulls are views of the batch's memory.

        Not so where NumPy lacks the type: booleans (bits in Arrow), dates (of 32 bits) and decimals are copied.

        Integers with nulls are a `numpy.ma.MaskedArray` over the same memory; elsewhere nulls become NaN, NaT or None,
        as pyarrow's `to_numpy` does it. A time is the timedelta64 since midnight.
        """
        return {
            name: _to_numpy(_without_objects(column))
            for name, column in zip(self.batch.schema.names, self.batch.columns, strict=True)
        }


def _without_objects(column: pa.Array) -> pa.Array:
    """A time as a duration, of which NumPy has a type; as a time it would be an object per value."""
    return column.view(pa.duration("us")) if pa.types.is_time64(column.type) else column


def _to_numpy(column: pa.Array) -> np.ndarray[Any, Any]:
    if not pa.types.is_integer(column.type) or column.null_count == 0:
        return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    import numpy as np

    # As floats, which is what pyarrow makes of them, large integers would be others. Arrow and NumPy call integers the
    # same; pyarrow's own way from type to type wants pandas.
    whole = np.frombuffer(column.buffers()[1], np.dtype(str(column.type)))
    values = whole[column.offset : column.offset + len(column)]
    return np.ma.MaskedArray(values, column.is_null().to_numpy(zero_copy_only=False))


class Decoded:
    """The outcome of a call: `changes`, `transactions`, `outcomes`, `truncates`, `messages` and `rejects`.

    The tables beside the changes are made when they are first asked for.

    >>> import pgoutput_fast as pgo
    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> orders, writer = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),)), Writer()
    >>> wal = writer.begin(7, 100, 0) + writer.change(orders, "insert", new=["1"]) + writer.commit(100, 108, 0)
    >>> decoded = pgo.decode(wal)
    >>> decoded
    <Decoded: 1 rows of public.orders>
    >>> decoded.transactions.column("kind").to_pylist(), decoded.rejects.num_rows
    (['begin', 'commit'], 0)
    >>> decoded.changes[0].to_numpy()["id"]
    array([1], dtype=int32)
    """

    def __init__(self, changes: Sequence[RelationBatch], records: Any, options: Options) -> None:
        self._changes = list(changes)
        self._records = records
        self._options = options

    def __repr__(self) -> str:
        names = dict.fromkeys(each.relation.qualified_name for each in self._changes)
        rows = sum(each.batch.num_rows for each in self._changes)
        return f"<Decoded: {rows} rows of {', '.join(names) or 'no relation'}>"

    @property
    def changes(self) -> list[RelationBatch]:
        """A batch per relation version, or several where it is large; versions in first-seen order."""
        return self._changes

    @property
    def transactions(self) -> pa.RecordBatch:
        """A row per boundary message: TRANSACTIONS_SCHEMA."""
        return self._records.transactions

    @property
    def outcomes(self) -> pa.RecordBatch:
        """A row per transaction or subtransaction whose fate became known: OUTCOMES_SCHEMA."""
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
        """What could not be decoded, or has no Arrow form: REJECTS_SCHEMA."""
        return self._records.rejects

    def table(
        self,
        table: str | int,
        schema: pa.Schema | Relation | None = None,
        extra_columns: Literal["error", "drop"] | None = None,
    ) -> pa.Table:
        """All changes of one relation as one table, in apply order; an empty one if there are none.

        Args:
            table: its qualified name, quoted as SQL quotes it (every version that bore this name when the change was
                sent), or its oid (all versions of that relation).
            schema: what the columns behind the metadata columns are to be, by name: an Arrow schema, or a relation
                version that has it. Columns that a version lacks are null; types are widened, never narrowed. If not
                given, `Options(schemas=...)` is asked, and without an answer there the versions are unified, the
                newest leading.
            extra_columns: what a column that the pinned schema lacks is: an `"error"`, or to be `"drop"`ped; as the
                options say if not given.

        Where no change of it is here, but the decoder knows it, the table is empty. Its schema is that of all versions
        that are known, unified or pinned as those of changes are; if no one schema can hold them, that of the version
        described last.

        Raises:
            KeyError: if nobody described such a relation; the message names what there is.
            ValueError: if versions differ so that no one table can hold them, or do not fit the pinned schema;
                `changes` still gives each. And for a column that bears the name of a metadata column, or that
                `Options(columns=...)` names and no version has.
        """
        found = [each for each in self._changes if _matches(each.relation, table)]
        known: list[Relation] = [] if found else self._records.known
        versions = [relation for relation in known if _matches(relation, table)]
        if not found and not versions:
            raise KeyError(no_such_table(table, (*known, *(each.relation for each in self._changes))))
        extra_columns = self._options.extra_columns if extra_columns is None else extra_columns
        if extra_columns not in EXTRA_COLUMNS:
            raise ValueError(f"extra_columns must be 'error' or 'drop', not {extra_columns!r}")
        schema = self._options.pinned(table) if schema is None else schema
        if schema is not None and not isinstance(schema, pa.Schema | Relation):
            raise TypeError(f"schema must be a pyarrow Schema or a Relation, not {type(schema).__name__}")
        if isinstance(schema, Relation):
            schema = _schema_of(schema, self._options, self._records.types)
        if not found:
            return _schema_without_rows(versions, self._options, schema, self._records.types).empty_table()
        return concat_in_order(found, self._options, schema, extra_columns)


def _schema_of(relation: Relation, options: Options, types: UserTypes) -> pa.Schema:
    """What a relation version is decoded into."""
    return relation_schema(
        relation, [column_type_of(column, options, types) for column in relation.columns], options
    )


def _schema_without_rows(
    versions: Sequence[Relation], options: Options, pinned: pa.Schema | None, types: UserTypes
) -> pa.Schema:
    """The schema of a table that has no rows, of the versions of a relation that are known."""
    options.check_columns(versions[-1], versions, set())
    if pinned is not None:
        # There is no row that might not fit.
        return pin_schema([], pinned, metadata_fields(options.metadata_prefix))
    schemas = [(relation, _schema_of(relation, options, types)) for relation in versions]
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
    """One table of all batches, their versions unified or pinned, ordered as the changes are to be applied."""
    batches = list(batches)
    prefix = options.metadata_prefix
    keys = [f"{prefix}commit_lsn"] if options.transactions == "committed" else []
    keys.append(f"{prefix}seq")
    # By relation: versions of one id may still differ in what their types are called. A version can come back, so the
    # newest is not the one that was first seen last, but the one that has the last row.
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
    for field in schema:
        if not field.nullable and whole.column(field.name).null_count:
            name = versions[-1][0].qualified_name
            raise ValueError(f"{name}: column {field.name!r} has nulls, the pinned schema says it has none")
    return _sorted(whole, keys)


def _concat(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The batches one behind the other, with the columns and types of a schema that they were unified into.

    Column by column: of a column that few of many versions have, what lies between its values is one array of nulls,
    and columns of one type share these. So the work is that of the columns that there are, not of those that might be.
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
    """The batch with the columns and types of a schema that it was unified into; columns it lacks are null."""
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _sorted(table: pa.Table, keys: list[str]) -> pa.Table:
    """Ordered by int64 columns; rows with the same keys, such as pre- and postimage, keep their order."""
    import numpy as np

    values = [table.column(key).combine_chunks().fill_null(-1).to_numpy() for key in keys]
    if len(values) == 1 and bool(np.all(values[0][1:] >= values[0][:-1])):
        return table
    order = np.lexsort(values[::-1])
    if bool(np.all(order[1:] > order[:-1])):
        return table
    return table.take(pa.array(order))
