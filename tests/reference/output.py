"""What the reference decoder gives: rows of every kind, and rejects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from reference.nested import convert
from reference.records import Column, Frame, Relation, Transaction, WaitingChange
from reference.types import Cell, MalformedError, Value, read_images

Row = dict[str, Any]


class ReferenceError(ValueError):
    """The input cannot be decoded. The text names the position, but never contains the value."""

    def __init__(
        self,
        seq: int,
        reason: str,
        relation: str | None = None,
        column: str | None = None,
        byte_offset: int | None = None,
    ):
        super().__init__(f"message {seq}, relation {relation}, column {column}, byte {byte_offset}: {reason}")
        self.seq, self.reason = seq, reason
        self.relation, self.column, self.byte_offset = relation, column, byte_offset


@dataclass
class Decoded:
    rows: list[Row] = field(default_factory=list)
    transactions: list[Row] = field(default_factory=list)
    outcomes: list[Row] = field(default_factory=list)
    truncates: list[Row] = field(default_factory=list)
    messages: list[Row] = field(default_factory=list)
    rejects: list[Row] = field(default_factory=list)


class Output:
    """The part of a decoder that writes rows. It does not know the position in the stream."""

    def __init__(self, quarantine: bool, raise_unrepresentable: bool, committed: bool):
        self.quarantine = quarantine
        self.raise_unrepresentable = raise_unrepresentable
        self.committed = committed
        self.out = Decoded()

    def deliver(self, txn: Transaction | None, change: WaitingChange) -> None:
        if txn and self.committed:
            txn.waiting.append(change)
        else:
            self.emit(change)

    def release(self, txn: Transaction) -> None:
        waiting, txn.waiting = txn.waiting, []
        for one in waiting:
            self.emit(one)

    def emit(self, change: WaitingChange) -> None:
        """Outputs a change. It is parsed only now: in committed mode a rolled-back change may have any bytes."""
        try:
            change.emit()
        except MalformedError as problem:
            self.reject(change.frame, problem)

    def decode_change(
        self, frame: Frame, txn: Transaction, subxid: int | None, relation: Relation, start: int
    ) -> None:
        rows, rejects = [], []
        try:
            for change_type, key_only, cells in read_images(frame.payload, start, len(relation.columns)):
                values: dict[str, Any] = {}
                unchanged, unrepresentable = [], []
                for column, cell in zip(relation.columns, cells, strict=True):
                    value = cell_value(relation, column, cell)
                    values[column.name] = value.value
                    if cell.kind == "u":
                        unchanged.append(column.name)
                    if value.unrepresentable:
                        unrepresentable.append(column.name)
                    if value.problem:
                        rejects.append(cell_reject(frame, relation, column, change_type, cell, value.problem))
                rows.append(
                    row_of(
                        frame,
                        txn,
                        subxid,
                        relation,
                        change_type,
                        key_only,
                        values,
                        unchanged,
                        unrepresentable,
                    )
                )
        except MalformedError as problem:
            problem.relation = relation.quoted
            raise
        if rejects and self.raise_unrepresentable:
            first = rejects[0]
            raise ReferenceError(
                frame.seq, first["reason"], first["relation"], first["column"], first["byte_offset"]
            )
        self.out.rows += rows
        self.out.rejects += rejects

    def reject(self, frame: Frame, problem: MalformedError) -> None:
        """Rejects the whole message, or raises."""
        if not self.quarantine:
            raise ReferenceError(frame.seq, problem.reason, problem.relation, problem.column, problem.offset)
        self.out.rejects.append(
            {
                "seq": frame.seq, "lsn": frame.lsn, "relation": problem.relation, "column": problem.column,
                "change_type": None, "format": None, "type_oid": None, "byte_offset": problem.offset,
                "reason": problem.reason, "raw": frame.payload,
            }
        )  # fmt: skip

    def boundary(
        self, frame: Frame, kind: str, txn: Transaction | None, xid: int | None, *, ends: bool = False,
        **given: Any,
    ) -> None:  # fmt: skip
        row: Row = {
            "seq": frame.seq, "kind": kind, "txn": txn.key if txn else None, "xid": xid, "subxid": None,
            "lsn": None, "end_lsn": None, "timestamp": None, "prepare_timestamp": None, "gid": None,
            "origin": None, "origin_lsn": None, "first_segment": None,
        }  # fmt: skip
        if ends and txn:
            row.update(origin=txn.origin, origin_lsn=txn.origin_lsn)
        self.out.transactions.append(row | given)

    def outcome(
        self, txn: Transaction, outcome: str, seq: int, lsn: int | None = None, timestamp: int | None = None,
        subxid: int | None = None,
    ) -> None:  # fmt: skip
        self.out.outcomes.append(
            {
                "txn": txn.key, "subxid": subxid, "outcome": outcome, "at_seq": seq, "commit_lsn": lsn,
                "commit_timestamp": timestamp,
            }
        )  # fmt: skip


def cell_value(relation: Relation, column: Column, cell: Cell) -> Value:
    if cell.kind in "nu":
        return Value(None)
    try:
        return convert(column.type, cell.kind == "b", cell.raw)
    except MalformedError as problem:
        raise MalformedError(problem.reason, cell.offset, relation.quoted, column.name) from None


def cell_reject(
    frame: Frame, relation: Relation, column: Column, change_type: str, cell: Cell, reason: str
) -> Row:
    return {
        "seq": frame.seq, "lsn": frame.lsn, "relation": relation.quoted, "column": column.name,
        "change_type": change_type, "format": "binary" if cell.kind == "b" else "text",
        "type_oid": column.type_oid, "byte_offset": cell.offset, "reason": reason, "raw": cell.raw,
    }  # fmt: skip


def row_of(
    frame: Frame, txn: Transaction, subxid: int | None, relation: Relation, change_type: str, key_only: bool,
    columns: dict[str, Any], unchanged: list[str], unrepresentable: list[str],
) -> Row:  # fmt: skip
    return {
        "relation": (relation.oid, relation.namespace, relation.name),
        "version": relation.version,
        "columns": columns,
        "_change_type": change_type,
        "_seq": frame.seq,
        "_lsn": frame.lsn,
        "_txn": txn.key,
        "_xid": txn.xid,
        "_subxid": subxid,
        "_commit_lsn": txn.commit_lsn,
        "_commit_timestamp": txn.commit_timestamp,
        "_key_only": key_only,
        "_unchanged": unchanged or None,
        "_unrepresentable": unrepresentable or None,
    }
