"""Current tables of every kind, random effects, and a plain model of their results."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgoutput_fast.merge.current_table import CurrentTable
from pgoutput_fast.merge.duckdb import DuckDBMerge
from pgoutput_fast.merge.effect.effect import COMMIT_LSN, UNREPRESENTABLE, Effect, current_schema
from pgoutput_fast.merge.effect.fill import Part
from pgoutput_fast.merge.local import LocalMerge
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.duckdb import DuckDBCurrent
from pgoutput_fast.tables.ducklake import DuckLakeCurrent
from pgoutput_fast.tables.file_table import CurrentFileTable
from pgoutput_fast.tables.files import CURRENT_FILE_BYTES
from pgoutput_fast.tables.formats import open_target
from pgoutput_fast.tables.options import Merge, TableOptions

__all__ = [
    "KEYS",
    "KINDS",
    "SLOW_KEYS",
    "Model",
    "RandomEffects",
    "canonical",
    "canonical_in",
    "delta_table",
    "duckdb_table",
    "ducklake_table",
    "forget_statistics",
    "iceberg_table",
    "names_of",
    "open_table",
    "settle",
]

KINDS = ["delta", "iceberg", "duckdb"]
# PostgreSQL accepts all of these as column names.
NAMES = [
    'a "b" `c`',
    "it's.a;dot",
    "Größe ÜBER",
    "1st",
    "source",
    "target",
    "_op",
    "rowid",
    "a.b",
    "a",
    "select",
    "x=y/z%20",
]
_EPOCH = datetime(2024, 2, 29, tzinfo=UTC)

# Types of key columns, and functions for the n-th value.
KEYS: dict[str, list[tuple[pa.DataType, Any]]] = {
    "int2": [(pa.int16(), lambda n: n - 50)],
    "int8": [(pa.int64(), lambda n: (n - 50) << 40)],
    "text": [(pa.string(), lambda n: ["", "'", '"', "''\\", "Ü", "null", "%", "é注" * 20][n % 8] + (str(n // 8) if n > 7 else ""))],
    "uuid": [(pa.string(), lambda n: f"{(n * 2654435761) % 2**32:08x}-0000-4000-8000-000000000000")],
    "timestamptz": [(pa.timestamp("us", "UTC"), lambda n: _EPOCH + timedelta(microseconds=n * 333))],
    "timestamp": [(pa.timestamp("us"), lambda n: (_EPOCH - timedelta(days=n * 999)).replace(tzinfo=None))],
    "date": [(pa.date32(), lambda n: date(1, 1, 1) + timedelta(days=n))],
    "numeric": [(pa.decimal128(20, 4), lambda n: Decimal(n - 50) / 16)],
    "bytea": [(pa.binary(), lambda n: bytes([n % 3, 0, n]))],
    "bool and int4": [(pa.bool_(), lambda n: n % 2 == 0), (pa.int32(), lambda n: n // 2)],
    "float8": [(pa.float64(), lambda n: [float("nan"), 0.0, float("inf"), -float("inf")][n] if n < 4 else n / 3)],
    "text and int8": [(pa.string(), lambda n: "ab"[n % 2]), (pa.int64(), lambda n: n // 2)],
}  # fmt: skip
# Their values go the way of another type's.
SLOW_KEYS = ("int2", "int8", "uuid", "timestamp", "date", "bytea", "text", "bool and int4")

_VALUES: list[tuple[pa.DataType, Any]] = [
    (pa.string(), lambda dice: dice.choice([None, "", "x", "'", "é" * 30])),
    (pa.float64(), lambda dice: dice.choice([None, float("nan"), 0.0, -0.0, 1.5])),
    (pa.int32(), lambda dice: dice.choice([None, 0, 7, -(2**31)])),
    (pa.list_(pa.string()), lambda dice: dice.choice([None, [], [None], ["a", None], ["a"]])),
    (
        pa.map_(pa.string(), pa.string()),
        lambda dice: dice.choice([None, [], [("a", None)], [("", "é"), ("a", "")]]),
    ),
    (
        pa.struct([("x", pa.int64()), ("y", pa.list_(pa.float32()))]),
        lambda dice: dice.choice(
            [None, {"x": None, "y": None}, {"x": 1, "y": [0.5, None]}, {"x": 1, "y": []}]
        ),
    ),
    (pa.decimal128(12, 2), lambda dice: dice.choice([None, Decimal("1.50"), Decimal("-0.01")])),
    (pa.bool_(), lambda dice: dice.choice([None, True, False])),
    (pa.binary(), lambda dice: dice.choice([None, b"", b"\0'"])),
    (pa.timestamp("us", "UTC"), lambda dice: dice.choice([None, _EPOCH])),
]


class SettledMerge(LocalMerge):
    """A table whose files are written anew before an effect returns, and not beside later ones."""

    def apply_parts(self, parts: Iterable[Part], position: int, after: int | None = None) -> None:
        super().apply_parts(parts, position, after)
        settle(self)

    def vacuum(self, keep: int = 1) -> int:
        try:
            return super().vacuum(keep)
        finally:
            self.give_up_rewriting()


def names_of(table: LocalMerge) -> set[str]:
    """The names of a table's files."""
    now = table.table.now()
    assert now is not None
    return now.names


def settle(table: LocalMerge) -> None:
    """Waits until no file need be written anew."""
    while (running := table._compaction) is not None:
        with suppress(Exception):  # what a mirror logs
            running.work.result()
        table.commit_rewritten()


def open_table(
    kind: str, place: Path, name: str = "public.orders", file_bytes: int = 4_000, *, settled: bool = True
) -> Any:
    """A table with files so short that a test has several. In those that are `marked`, merges mark many rows."""
    if kind == "duckdb":
        return duckdb_table(place / "current.duckdb", name)
    if kind == "ducklake":
        return ducklake_table(place / "current.ducklake", name)
    place.mkdir(exist_ok=True)
    kinds: dict[str, tuple[str, Merge]] = {
        "marked": ("delta", "on_read"),
        "marked iceberg": ("iceberg", "on_read"),
    }
    format, merge = kinds.get(kind, (kind, "on_write"))
    return open_files(format, place, name, file_bytes, merge, most_marked=0.3, settled=settled)


def open_files(
    format: str,
    place: str | os.PathLike[str],
    directory: str,
    file_bytes: int = CURRENT_FILE_BYTES,
    merge: Merge = "on_write",
    most_marked: float = CurrentFileTable.most_marked,
    *,
    settled: bool = True,
) -> LocalMerge:
    """A current table of files, by its directory. In short files, more rows than usual may be marked.

    Args:
        settled: whether files are written anew before an effect returns. In a mirror, this goes on beside later ones.
    """
    target = open_target(format, open_store(place), TableOptions())
    table = CurrentFileTable(target.table(directory, "current"), file_bytes, merge)
    table.most_marked = most_marked
    return SettledMerge(table) if settled else LocalMerge(table)


def delta_table(place: str | os.PathLike[str], directory: str, **more: Any) -> LocalMerge:
    return open_files("delta", place, directory, **more)


def iceberg_table(place: str | os.PathLike[str], directory: str, **more: Any) -> LocalMerge:
    return open_files("iceberg", place, directory, **more)


def duckdb_table(*arguments: Any) -> DuckDBMerge:
    return DuckDBMerge(DuckDBCurrent(*arguments))


def ducklake_table(*arguments: Any) -> DuckDBMerge:
    return DuckDBMerge(DuckLakeCurrent(*arguments))


def canonical(value: Any) -> str:
    """A text that identifies a value: all NaNs are equal, and -0.0 differs from 0.0."""
    return repr(value)


def canonical_in(table: CurrentTable) -> Callable[[Any], str]:
    """The same for values of a table, which may keep no signs of zeros."""
    if getattr(getattr(table, "table", None), "signed_zeros", True):
        return canonical
    return lambda value: re.sub(r"-0\.0\b", "0.0", canonical(value))


class Model:
    """The expected content of a table, in plain Python.

    Attributes:
        rows: its rows.
        names: its columns.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.names: list[str] = []

    def key_of(self, row: dict[str, Any], key: Sequence[str]) -> str:
        return canonical([row[name] + 0.0 if isinstance(row[name], float) else row[name] for name in key])

    def apply(self, effect: Effect) -> None:
        new = effect.rows.to_pylist()
        self.names += [name for name in effect.rows.schema.names if name not in self.names]
        if effect.truncated:
            self.rows = []
        elif effect.key:
            old = {self.key_of(row, effect.key) for row in [*effect.gone.to_pylist(), *new]}
            self.rows = [row for row in self.rows if self.key_of(row, effect.key) not in old]
        else:
            names = [name for name in effect.gone.schema.names if name != COMMIT_LSN]
            gone = Counter(canonical(_values_of(row, names)) for row in effect.gone.to_pylist())
            stay = []
            for row in self.rows:
                same = canonical(_values_of(row, names))
                if gone[same]:
                    gone[same] -= 1
                else:
                    stay.append(row)
            assert not gone.total()
            self.rows = stay
        self.rows += new

    def assert_equal(
        self, table: CurrentTable, compared: Sequence[str] | None = None, version: int | None = None
    ) -> None:
        """Asserts that the table has these rows, by the compared columns. By default, all are compared."""
        got = table.read(version)
        assert got.schema.names == self.names
        names = self.names if compared is None else compared
        text = canonical_in(table)
        there, wanted = (
            Counter(text(_values_of(row, names)) for row in rows) for rows in (got.to_pylist(), self.rows)
        )
        assert (there - wanted, wanted - there) == (Counter(), Counter())


def _values_of(row: dict[str, Any], names: Sequence[str]) -> list[Any]:
    """The values of a row in some columns. Marks of other columns do not count."""
    marks = [name for name in row.get(UNREPRESENTABLE) or () if name in names]
    return [(marks or None) if name == UNREPRESENTABLE else row.get(name) for name in names]


class RandomEffects:
    """Random effects on a table with or without a key, and a column of each type.

    Args:
        seed: of the random numbers.
        key: one of `KEYS`; None for a table without a key.
    """

    def __init__(self, seed: int, key: str | None) -> None:
        self.dice = random.Random(seed)
        names = self.dice.sample(NAMES, len(NAMES))
        kinds = [] if key is None else KEYS[key]
        self._makers = [maker for _, maker in kinds]
        self.key = tuple(names[: len(kinds)])
        self._unused = iter(names[len(kinds) :])
        self._fields = [pa.field(name, kind) for name, (kind, _) in zip(self.key, kinds, strict=False)]
        self._values = dict(self._more(self.dice.sample(_VALUES, 4)))
        self._lsns = itertools.count(100)
        self.model = Model()

    def _more(self, values: Sequence[tuple[pa.DataType, Any]]) -> list[tuple[str, Any]]:
        """Adds columns. Returns their names and the functions for their values."""
        named = [(next(self._unused), kind, maker) for kind, maker in values]
        self._fields += [pa.field(name, kind) for name, kind, _ in named]
        return [(name, maker) for name, _, maker in named]

    @property
    def schema(self) -> pa.Schema:
        return current_schema(pa.schema(self._fields))

    @property
    def compared(self) -> list[str] | None:
        """The columns that determine the rows. Of rows that are equal by these, any may have been removed."""
        return None if self.key else [name for name in self.schema.names if name != COMMIT_LSN]

    def rows(self, numbers: Sequence[int]) -> pa.Table:
        """Rows with the keys of these numbers."""
        lsn = next(self._lsns)
        marks = [None, None, [next(iter(self._values))]]
        made = []
        for n in numbers:
            row = {name: maker(n) for name, maker in zip(self.key, self._makers, strict=True)}
            row |= {name: maker(self.dice) for name, maker in self._values.items()}
            made.append({**row, COMMIT_LSN: lsn, UNREPRESENTABLE: self.dice.choice(marks)})
        return pa.Table.from_pylist(made, schema=self.schema)

    def keys(self, numbers: Sequence[int]) -> pa.Table:
        types = pa.schema([self.schema.field(name) for name in self.key])
        made = [{name: maker(n) for name, maker in zip(self.key, self._makers, strict=True)} for n in numbers]
        return pa.Table.from_pylist(made, schema=types)

    def next(self) -> Effect:
        """Returns an effect that fits the model, and applies it to the model."""
        if self.dice.random() < 0.15:
            self._change_columns()
        effect = self._keyed() if self.key else self._copies()
        self.model.apply(effect)
        return effect

    def _change_columns(self) -> None:
        if self.dice.random() < 0.5 and len(self._values) > 1:
            went = self.dice.choice(list(self._values))
            del self._values[went]
            self._fields = [field for field in self._fields if field.name != went]
        else:
            self._values |= self._more([self.dice.choice(_VALUES)])

    def _keyed(self) -> Effect:
        truncated = self.dice.random() < 0.05
        numbers = self.dice.sample(range(100), self.dice.choice([0, 1, 5, 40]))
        gone = [] if truncated else numbers[: self.dice.randint(0, len(numbers))]
        rows = [n for n in numbers if n not in gone]
        return Effect(self.key, truncated, self.keys(gone), self.rows(rows))

    def _copies(self) -> Effect:
        names = self.compared or []
        types = pa.schema([self.schema.field(name) for name in names])
        truncated = self.dice.random() < 0.05
        count = 0 if truncated else self.dice.choice([0, 1, 5, len(self.model.rows) // 2])
        gone = self.dice.sample(self.model.rows, min(count, len(self.model.rows)))
        made = [{name: row.get(name) for name in names} for row in gone]
        rows = self.rows([0] * self.dice.choice([0, 1, 5, 40]))
        return Effect((), truncated, pa.Table.from_pylist(made, schema=types), rows)


def forget_statistics(table: Path) -> None:
    """Leaves a Delta table as programs do that write no statistics of files: the log has no counts of rows."""
    for entry in (table / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines() if line]
        for action in actions:
            action.get("add", {}).pop("stats", None)
        entry.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
