"""Arrow schemas of the changes of a relation version, of tagged payloads, and of the further result tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from pgoutput_fast.schema.metadata_columns import metadata_fields, metadata_names

if TYPE_CHECKING:
    from pgoutput_fast.catalog.relations import Column, Relation
    from pgoutput_fast.schema.column_types import ColumnType
    from pgoutput_fast.schema.options import Options

__all__ = [
    "KEEPALIVES_SCHEMA",
    "MESSAGES_SCHEMA",
    "OUTCOMES_SCHEMA",
    "REJECTS_SCHEMA",
    "TAGGED_SCHEMA",
    "TRANSACTIONS_SCHEMA",
    "TRUNCATES_SCHEMA",
    "one_batch",
    "relation_schema",
]

_TIME = pa.timestamp("us", tz="UTC")

TAGGED_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("lsn", pa.int64()),
        ("kind", pa.int8()),
        ("relation", pa.int64()),
        ("version", pa.int64()),
        ("txn", pa.int64()),
        ("xid", pa.int64()),
        ("subxid", pa.int64()),
        ("in_stream", pa.bool_()),
        ("commit_lsn", pa.int64()),
        ("commit_timestamp", _TIME),
        ("payload", pa.binary()),
    ]
)
"""The columns of tagged payloads: a message and all that a decoder needs to know about it.

There is one row per message, except that a Truncate has one row per relation: the first row has the original message,
further rows a Truncate of their relation alone. So every row is complete, and a Truncate costs only some bytes per
relation.

The kind 0 marks the start of a session. Quarantine on Spark makes rows with two more kinds: 126 for a message that was
rejected, and 127 for a transaction whose outcome is unknown from there on.
"""

TRANSACTIONS_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("kind", pa.string()),
        ("txn", pa.int64()),
        ("xid", pa.int64()),
        ("subxid", pa.int64()),
        ("lsn", pa.int64()),
        ("end_lsn", pa.int64()),
        ("timestamp", _TIME),
        ("prepare_timestamp", _TIME),
        ("gid", pa.string()),
        ("origin", pa.string()),
        ("origin_lsn", pa.int64()),
        ("first_segment", pa.bool_()),
    ]
)

OUTCOMES_SCHEMA = pa.schema(
    [
        ("txn", pa.int64()),
        ("subxid", pa.int64()),
        ("outcome", pa.string()),
        ("at_seq", pa.int64()),
        ("commit_lsn", pa.int64()),
        ("commit_timestamp", _TIME),
    ]
)

TRUNCATES_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("txn", pa.int64()),
        ("relations", pa.list_(pa.int64())),
        ("cascade", pa.bool_()),
        ("restart_identity", pa.bool_()),
    ]
)

MESSAGES_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("lsn", pa.int64()),
        ("txn", pa.int64()),
        ("xid", pa.int64()),
        ("transactional", pa.bool_()),
        ("prefix", pa.string()),
        ("content", pa.binary()),
    ]
)

REJECTS_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("lsn", pa.int64()),
        ("relation", pa.string()),
        ("column", pa.string()),
        ("change_type", pa.string()),
        ("format", pa.string()),
        ("type_oid", pa.int64()),
        ("byte_offset", pa.int64()),
        ("reason", pa.string()),
        ("raw", pa.binary()),
    ]
)

KEEPALIVES_SCHEMA = pa.schema(
    [("after", pa.int64()), ("wal_end", pa.int64()), ("sent_at", _TIME), ("reply_requested", pa.bool_())]
)


# Relations share the fields of equal columns, such as an `id` in many tables.
@lru_cache(maxsize=4096)
def _column_field(
    column: Column,
    type_name: str,
    unknown: bool,
    arrow: pa.DataType,
    more: tuple[tuple[str, str], ...],
) -> pa.Field:
    metadata = {
        "pg.type_oid": str(column.type_oid),
        "pg.type": type_name,
        "pg.typmod": str(column.typmod),
        "pg.key": "true" if column.key else "false",
    }
    if unknown:
        metadata["pg.unknown"] = "true"
    return pa.field(column.name, arrow, metadata=metadata | dict(more))


def relation_schema(relation: Relation, column_types: Sequence[ColumnType], options: Options) -> pa.Schema:
    """The schema of the changes of a relation version: metadata columns, then the selected columns of the relation.

    The metadata of a field describes the PostgreSQL type (`pg.type_oid`, `pg.type`, `pg.typmod`, `pg.key`,
    `pg.unknown`); that of a geometry also names its GeoArrow type. The metadata of the schema describes the relation
    (`pg.relation_oid`, `pg.namespace`, `pg.relation`, `pg.replica_identity`, `pg.version`).

    Raises:
        ValueError: if a column has the name of a metadata column.
    """
    fields = metadata_fields(options.metadata_prefix)
    reserved = metadata_names(options.metadata_prefix)
    chosen = options.columns_of(relation)
    for column, column_type in zip(relation.columns, column_types, strict=True):
        if chosen is not None and column.name not in chosen:
            continue
        if column.name in reserved:
            raise ValueError(
                f"column {column.name!r} of {relation.qualified_name} has the name of a metadata column: choose "
                f"another Options(metadata_prefix=...) than {options.metadata_prefix!r}"
            )
        kind = column_type
        fields.append(_column_field(column, kind.name, kind.unknown, kind.arrow, kind.metadata))
    return pa.schema(
        fields,
        metadata={
            "pg.relation_oid": str(relation.oid),
            "pg.namespace": relation.namespace,
            "pg.relation": relation.name,
            "pg.replica_identity": relation.replica_identity,
            "pg.version": str(relation.version),
        },
    )


def one_batch(table: pa.Table, what: str = "more than 2 GiB of payloads") -> pa.RecordBatch:
    """All rows of a table as one batch.

    Args:
        table: the rows.
        what: describes rows that do not fit into a batch, for the error.

    Raises:
        ValueError: if they do not.
    """
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise ValueError(f"{what} in one call: pass fewer payloads to a call")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
