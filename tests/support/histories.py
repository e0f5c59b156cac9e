"""Hypothesis strategies for the history of a table: its transactions as decoded changes."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from pgoutput_fast.schema.metadata_columns import metadata_fields

__all__ = ["History", "histories"]

Change = dict[str, Any]
NAN = float("nan")
UTC = datetime.UTC
MARKS = "marks"

# Few values of each kind, so that keys are reused and whole rows are equal.
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int64(), [0, 1, 2, -(1 << 63), (1 << 63) - 1]),
    "text": (pa.string(), ["", "a", "é€", "a" * 40, "null"]),
    "decimal": (pa.decimal128(10, 2), [decimal.Decimal(text) for text in ("0.00", "1.10", "-1.10", "99.99")]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [datetime.datetime(2024, 1, 1, tzinfo=UTC) + datetime.timedelta(microseconds=k) for k in range(4)],
    ),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0", b"\xff"]),
    "float": (pa.float64(), [0.0, -0.0, NAN, 1.5, float("inf")]),
    "date": (pa.date32(), [datetime.date(2024, 1, day) for day in range(1, 5)]),
    "bool": (pa.bool_(), [False, True]),
    "real": (pa.float32(), [0.0, -0.0, NAN, 0.5]),
    "list": (pa.list_(pa.float64()), [[], [None], [0.0], [-0.0], [NAN, 1.0], [1.0, NAN]]),
    "map": (
        pa.map_(pa.string(), pa.string()),
        [[], [("a", None)], [("a", "")], [("b", "")], [("a", ""), ("b", None)], [("", "a"), ("b", "c")]],
    ),
    "range": (
        pa.struct([("lower", pa.int32()), ("text", pa.string())]),
        [{"lower": None, "text": None}, {"lower": 1, "text": ""}, {"lower": 1, "text": None}],
    ),
    "nested": (
        pa.list_(pa.struct([("x", pa.list_(pa.string()))])),
        [[], [None], [{"x": None}], [{"x": []}], [{"x": ["", None]}], [{"x": [""]}, {"x": [None]}]],
    ),
}
KEYS = ["int", "text", "decimal", "timestamp", "binary", "float", "date"]


@dataclass
class History:
    """The history of a table.

    Attributes:
        key: the columns of the key; empty for whole rows.
        schema: the schema of the changes: metadata columns, and the table's.
        transactions: the changes of each transaction, in apply order.
    """

    key: tuple[str, ...]
    schema: pa.Schema
    transactions: list[list[Change]] = field(default_factory=list)

    @property
    def columns(self) -> pa.Schema:
        """The table's columns."""
        return pa.schema([each for each in self.schema if not each.name.startswith("_")])

    def table(self, changes: list[Change], batch_rows: int = 1 << 20) -> pa.Table:
        """Changes as a table of one or more batches."""
        whole = pa.Table.from_pylist(changes, self.schema)
        return pa.Table.from_batches(whole.to_batches(batch_rows), self.schema)


@st.composite
def histories(draw: st.DrawFn, *, keyed: bool) -> History:
    """Transactions of a table with a key, or of one with whole old rows."""
    return _Server(draw, keyed).history()


class _Server:
    """A table, and the messages that its server would send."""

    def __init__(self, draw: st.DrawFn, keyed: bool) -> None:
        self.below: Callable[[int], int] = lambda n: draw(st.integers(0, n - 1))
        keys = [self.one_of(KEYS) for _ in range(1 + self.below(2))] if keyed else []
        others = [self.one_of([*VALUES]) for _ in range(1 + self.below(3))]
        self.kinds = {f"k{n}": kind for n, kind in enumerate(keys)} | {
            f"c{n}": kind for n, kind in enumerate(others)
        }
        self.key = tuple(f"k{n}" for n in range(len(keys)))
        self.rows: list[Change] = []  # with their `_unrepresentable`
        self.seq = 0

    def one_of(self, values: list[Any]) -> Any:
        return values[self.below(len(values))]

    def history(self) -> History:
        fields = [pa.field(name, VALUES[kind][0]) for name, kind in self.kinds.items()]
        names = {b"pg.namespace": b"public", b"pg.relation": b"t"}
        made = History(self.key, pa.schema([*metadata_fields("_"), *fields], metadata=names))
        for number in range(1 + self.below(8)):
            changes = [change for _ in range(1 + self.below(4)) for change in self.change()]
            for change in changes:
                change["_commit_lsn"] = 100 * (number + 1)
            made.transactions.append(changes)
        return made

    def change(self) -> list[Change]:
        choice = self.below(12)
        self.seq += 1
        if choice == 0:
            self.rows.clear()
            return [self.image("truncate", {})]
        if choice < 5 or not self.rows:
            return self.insert()
        row = self.rows.pop(self.below(len(self.rows)))
        if choice < 7:
            return [self.image("delete", *self.old(row))]
        return self.update(row, moves=choice < 10)

    def insert(self) -> list[Change]:
        row = self.new_row({})
        if self.taken(row):
            return []
        self.rows.append(row)
        return [self.image("insert", row)]

    def update(self, row: Change, moves: bool) -> list[Change]:
        """`moves`: the key changes."""
        new = self.new_row({} if moves else {name: row[name] for name in self.key})
        moved = any(repr(new[name]) != repr(row[name]) for name in self.key)
        kept = [name for name in self.kinds if name not in self.key and self.below(2)]
        # A server does not send large values that stay unchanged, except nulls.
        unsent = [name for name in kept if row[name] is not None or name in row[MARKS]]
        marks = set(new[MARKS]) - set(kept) | (set(row[MARKS]) & set(kept))
        new = new | {name: row[name] for name in kept} | {MARKS: marks}
        if self.taken(new):
            self.rows.append(row)
            return []
        self.rows.append(new)
        image = self.image("update_postimage", {**new, **dict.fromkeys(unsent)}, unsent)
        # The old row is sent if the key changes, and in some cases with the same key.
        if not self.key or moved or not self.below(6):
            return [self.image("update_preimage", *self.old(row)), image]
        return [image]

    def old(self, row: Change) -> tuple[Change, list[str] | None, bool]:
        """The parts of an old row that are sent."""
        return ({name: row[name] for name in self.key}, None, True) if self.key else (row, None, False)

    def new_row(self, key: Change) -> Change:
        row: Change = {MARKS: set()}
        for name, kind in self.kinds.items():
            value = self.one_of([*VALUES[kind][1], *([] if name in self.key else [None])])
            row[name] = key.get(name, value)
            if value is None and not self.below(2):
                row[MARKS].add(name)
        return row

    def taken(self, row: Change) -> bool:
        return bool(self.key) and any(
            all(repr(each[name]) == repr(row[name]) for name in self.key) for each in self.rows
        )

    def image(
        self, kind: str, row: Change, unsent: list[str] | None = None, key_only: bool = False
    ) -> Change:
        marks = [name for name in self.kinds if name in row.get(MARKS, ()) and name not in (unsent or ())]
        return {
            **{name: row.get(name) for name in self.kinds},
            "_change_type": kind,
            "_seq": self.seq,
            "_key_only": key_only,
            "_unchanged": unsent or None,
            "_unrepresentable": marks or None,
        }
