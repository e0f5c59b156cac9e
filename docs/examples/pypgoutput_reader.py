"""The reader of pypgoutput, with `pgo.follow` inside.

    python pypgoutput_reader.py DSN SLOT PUBLICATION

A program that iterates over pypgoutput's `LogicalReplicationReader` can iterate over this one. docs/examples.md says
what differs.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pgoutput_fast as pgo

OPERATIONS = {"insert": "I", "update_postimage": "U", "delete": "D", "truncate": "T"}


@dataclass(frozen=True)
class ColumnDefinition:
    name: str
    part_of_pkey: bool
    type_id: int
    type_name: str


@dataclass(frozen=True)
class TableSchema:
    column_definitions: list[ColumnDefinition]
    db: str
    schema_name: str
    table: str
    relation_id: int


@dataclass(frozen=True)
class Transaction:
    tx_id: int
    begin_lsn: int
    commit_ts: datetime


@dataclass(frozen=True)
class ChangeEvent:
    op: str
    lsn: int
    transaction: Transaction
    table_schema: TableSchema
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    message_id: uuid.UUID = field(default_factory=uuid.uuid4)


class LogicalReplicationReader:
    """Iterates over the changes of a slot. A batch is acknowledged when you ask for the first event of the next one."""

    def __init__(
        self, publication_name: str, slot_name: str, dsn: str, database: str, *, until_lsn: Any = None
    ) -> None:
        self._database = database
        self._stop = threading.Event()
        self._events = self._read(
            pgo.follow(dsn, slot_name, [publication_name], until_lsn=until_lsn, stop=self._stop)
        )

    def __iter__(self) -> Iterator[ChangeEvent]:
        return self._events

    def __next__(self) -> ChangeEvent:
        return next(self._events)

    def stop(self) -> None:
        """Ends the connection. What was acknowledged is confirmed to the server."""
        self._stop.set()
        self._events.close()

    def _read(self, batches: Iterator[Any]) -> Any:
        for decoded, acknowledge in batches:
            yield from self._events_of(decoded)
            acknowledge()

    def _events_of(self, decoded: pgo.Decoded) -> Iterator[ChangeEvent]:
        changes: dict[tuple[int, int, int], tuple[pgo.Relation, dict[str, dict[str, Any]]]] = {}
        for each in decoded.changes:
            for row in each.batch.to_pylist():
                place = (row["_commit_lsn"], row["_seq"], each.relation.oid)
                changes.setdefault(place, (each.relation, {}))[1][row["_change_type"]] = row
        for place in sorted(changes):
            relation, images = changes[place]
            kind = next(kind for kind in OPERATIONS if kind in images)
            row, old = images[kind], images.get("update_preimage") or images.get("delete")
            yield ChangeEvent(
                op=OPERATIONS[kind],
                lsn=row["_lsn"],
                transaction=Transaction(row["_xid"], row["_commit_lsn"], row["_commit_timestamp"]),
                table_schema=self._schema(relation),
                before=self._image(relation, old) if old else None,
                after=self._image(relation, row) if kind in ("insert", "update_postimage") else None,
            )

    def _schema(self, relation: pgo.Relation) -> TableSchema:
        columns = [
            ColumnDefinition(each.name, each.key, each.type_oid, each.type_in_words)
            for each in relation.columns
        ]
        return TableSchema(columns, self._database, relation.namespace, relation.name, relation.oid)

    def _image(self, relation: pgo.Relation, row: dict[str, Any]) -> dict[str, Any]:
        # A row with only the key has no other columns, as in pypgoutput. A value that was not sent is left out.
        unsent = row["_unchanged"] or ()
        return {
            each.name: row[each.name]
            for each in relation.columns
            if each.name not in unsent and (each.key or not row["_key_only"])
        }


def main() -> None:
    dsn, slot, publication = sys.argv[1:]
    for change in LogicalReplicationReader(publication, slot, dsn, "shop", until_lsn="now"):
        print(change.op, change.table_schema.table, change.before, change.after)


if __name__ == "__main__":
    main()
