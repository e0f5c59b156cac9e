"""Shared code of the snapshot tests: compares a snapshot's rows with a slot's changes of the same rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

import pgoutput_fast as pgo
from pgoutput_fast.capture import Snapshot
from support import pg
from support.oracle import METADATA, comparable, plain_type

OF_BOTH = ("_change_type", "_key_only", "_unchanged", "_unrepresentable")


def tables_of(batches: Iterable[tuple[str, pa.RecordBatch]]) -> dict[str, pa.Table]:
    """{name: table} of the tables that have rows."""
    found: dict[str, list[pa.RecordBatch]] = {}
    for name, batch in batches:
        batch.validate(full=True)
        found.setdefault(name, []).append(batch)
    return {name: pa.Table.from_batches(each) for name, each in found.items()}


def plain_rows(table: pa.Table, columns: Iterable[str] | None = None) -> list[tuple[Any, ...]]:
    """The rows, sorted, with the relation's columns and the metadata that changes and snapshots have in common."""
    names = columns if columns is not None else [*table.schema.names[len(METADATA) :], *OF_BOTH]
    plain = [table.column(name) for name in names]
    values = [comparable(each.cast(plain_type(each.type)).to_pylist()) for each in plain]
    return sorted(zip(*values, strict=True), key=repr)


def decoded(snapshot: Snapshot, payloads: list[pg.Payload]) -> pgo.Decoded:
    """Decodes payloads with the snapshot's catalog and options."""
    return pgo.Decoder(snapshot.options, catalog=snapshot.catalog).decode([data for _, data in payloads])


def changed_tables(out: pgo.Decoded) -> dict[str, pa.Table]:
    return tables_of((each.relation.qualified_name, each.batch) for each in out.changes)


def reject_rows(batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """The reject rows of values without an Arrow form."""
    names = ("relation", "column", "change_type", "type_oid", "reason")
    rows = itertools.chain.from_iterable(batch.select(names).to_pylist() for batch in batches)
    return sorted(tuple(row.values()) for row in rows)


def same_as_changes(snapshot: Snapshot, payloads: list[pg.Payload]) -> dict[str, pa.Table]:
    """Asserts that tables, schemas with metadata, values and rejects equal those of the inserts in `payloads`."""
    out = decoded(snapshot, payloads)
    expected = changed_tables(out)
    reading = snapshot.read()
    read = tables_of(reading)
    assert reading.lost == {}
    assert read.keys() == expected.keys(), read.keys() ^ expected.keys()
    for name, table in read.items():
        assert table.schema.equals(expected[name].schema, check_metadata=True), name
        assert snapshot.schema(name).equals(table.schema, check_metadata=True)
        assert plain_rows(table) == plain_rows(expected[name]), name
        assert set(table["_seq"].to_pylist()) == {-1}
        assert set(table["_commit_lsn"].to_pylist()) == {snapshot.consistent_lsn}
        for column in ("_lsn", "_txn", "_xid", "_subxid", "_commit_timestamp"):
            assert table[column].null_count == table.num_rows
    assert reject_rows(reading.rejects) == reject_rows([out.rejects])
    return read
