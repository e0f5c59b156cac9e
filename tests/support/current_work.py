"""Random SQL from a seed, on tables with every replica identity, and snapshots of the server's tables."""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from support import pg
from support.current_streams import Sent
from support.oracle import comparable

__all__ = ["CurrentWork", "Moment", "readable", "work"]

SEED = os.environ.get("PGOUTPUT_FAST_SEED", "20261123")
# The other columns of each table. Values of `big` are stored out of line: an update that keeps them does not send them.
REST = "n int, t text, big text, price numeric(10, 2), ratio float8, at timestamptz, tags text[]"
# {table: (its definition, its key, the column whose update moves a row)}
TABLES: dict[str, tuple[str, list[str], str]] = {
    "by_default": ("id int PRIMARY KEY, {rest}", ["id"], "id"),
    "by_index": ("name text NOT NULL, id int NOT NULL, {rest}, UNIQUE (name, id)", ["name", "id"], "id"),
    "whole": ("id int, {rest}", [], "id"),
    "deferred": ("id int UNIQUE DEFERRABLE INITIALLY DEFERRED, {rest}", [], "id"),
    "inserted": ("id int, {rest}", [], "id"),
    "parts": ("id int PRIMARY KEY, {rest}", ["id"], "id"),
}
FAR = 100  # rows of `parts` from this id on are in another partition
COLUMNS = ["n", "t", "big", "price", "ratio", "at", "tags"]


@dataclass(frozen=True)
class Moment:
    """The content of the server at a position: {table: rows}."""

    lsn: int
    rows: dict[str, list[str]]


class CurrentWork:
    """Random work on a slot's database."""

    def __init__(self, slot: pg.Slot, version: int, seed: str) -> None:
        self.slot, self.version = slot, version
        self.rng = random.Random(seed)
        self.tables = {name: key for name, (_, key, _) in TABLES.items() if name != "parts" or version >= 14}

    def create(self) -> None:
        for name in self.tables:
            definition = TABLES[name][0].format(rest=REST)
            partitioned = " PARTITION BY RANGE (id)" if name == "parts" else ""
            self.slot.execute(f"CREATE TABLE {name} ({definition}){partitioned}")
        if "parts" in self.tables:
            for part, bounds in (("near", f"MINVALUE) TO ({FAR}"), ("far", f"{FAR}) TO (MAXVALUE")):
                self.slot.execute(f"CREATE TABLE parts_{part} PARTITION OF parts FOR VALUES FROM ({bounds})")
        for name in [*self.tables, *(["parts_near", "parts_far"] if "parts" in self.tables else [])]:
            if name != "parts":
                self.slot.execute(f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL")
        for name, identity in (
            ("by_index", "USING INDEX by_index_name_id_key"),
            ("whole", "FULL"),
            ("deferred", "FULL"),
            ("inserted", "NOTHING"),
        ):
            self.slot.execute(f"ALTER TABLE {name} REPLICA IDENTITY {identity}")

    def moments(self, transactions: int) -> Iterator[Moment]:
        """Runs transactions. Reads the tables after some of them, and after the last one."""
        for number in range(transactions):
            self.slot.execute("BEGIN", *self.work())
            if self.rng.random() < 0.3:
                self.slot.execute("SAVEPOINT s", *self.work(), "ROLLBACK TO s", *self.work())
            self.slot.execute("COMMIT" if self.rng.random() < 0.9 else "ROLLBACK")
            if number == transactions - 1 or self.rng.random() < 0.3:
                lsn = self.slot.execute("SELECT pg_current_wal_insert_lsn() - '0/0'")[0][0]
                yield Moment(int(lsn), {name: self.rows(name) for name in self.tables})

    def rows(self, table: str) -> list[str]:
        columns = [*(["name"] if table == "by_index" else []), "id", *COLUMNS]
        infinite = "CASE WHEN NOT isfinite(at) THEN ARRAY['at'] END AS _unrepresentable"
        finite = ["CASE WHEN isfinite(at) THEN at END" if name == "at" else name for name in columns]
        found = self.slot.execute(f"SELECT {', '.join(finite)}, {infinite} FROM {table}")
        return readable([*columns, "_unrepresentable"], found)

    def work(self) -> Iterator[str]:
        for _ in range(self.rng.randint(1, 6)):
            yield from self.statements(self.rng.choice(list(self.tables)))

    def statements(self, table: str) -> Iterator[str]:
        rng, choice = self.rng, self.rng.randrange(12)
        some = f"id % 5 = {rng.randrange(5)}"
        absent = f"NOT EXISTS (SELECT FROM {table} there WHERE there.id = {table}.id"
        if table == "whole" and choice < 2:
            yield f"INSERT INTO {table} SELECT * FROM {table} WHERE {some} LIMIT 3"
        elif choice < 4 or table == "inserted":
            yield self.insert(table)
        elif choice < 6:
            assigned = rng.choice(
                ["n = n + 1", f"t = {self.text()}", "at = 'infinity'", "n = n, ratio = '-0'"]
            )
            yield f"UPDATE {table} SET {assigned} WHERE {some}"
        elif choice < 7:
            yield f"UPDATE {table} SET big = {rng.choice([self.text(), self.large()])} WHERE {some}"
        elif choice < 9:
            step, side = rng.choice([(f"+ {FAR}", "<"), (f"- {FAR}", ">=")])
            yield f"UPDATE {table} SET id = id {step} WHERE {some} AND id {side} {FAR} AND {absent} {step})"
        elif choice < 10:
            yield from self.swap(table)
        elif choice < 11:
            few = f"ctid IN (SELECT ctid FROM {table} WHERE {some} LIMIT {rng.randint(1, 3)})"
            yield f"DELETE FROM {table} WHERE {rng.choice([some, few])}"
        elif rng.random() < 0.3 and self.version >= 11:  # older servers do not send it
            yield f"TRUNCATE {table}"

    def swap(self, table: str) -> Iterator[str]:
        one, other = self.rng.sample(range(8), 2)
        if table in ("whole", "deferred"):
            yield f"UPDATE {table} SET id = {one + other} - id WHERE id IN ({one}, {other})"
        else:
            for before, behind in ((one, -1), (other, one), (-1, other)):
                yield f"UPDATE {table} SET id = {behind} WHERE id = {before}"

    def insert(self, table: str) -> str:
        """New rows, except those with an existing key."""
        names = ", ".join([*(["name"] if table == "by_index" else []), "id", *COLUMNS])
        if table == "deferred":  # ON CONFLICT does not know a constraint that is deferred
            absent = f"NOT EXISTS (SELECT FROM {table} there WHERE there.id = new.id)"
            return (
                f"INSERT INTO {table} SELECT * FROM (VALUES {self.row(table)}) new ({names}) WHERE {absent}"
            )
        rows = [self.row(table) for _ in range(self.rng.randint(1, 5))]
        return f"INSERT INTO {table} ({names}) VALUES {', '.join(rows)} ON CONFLICT DO NOTHING"

    def row(self, table: str) -> str:
        some = self.rng.choice
        values = [
            *([some(["'a'", "'é'"])] if table == "by_index" else []),
            str(self.rng.randrange(20 if table == "inserted" else 8)),
            some(["NULL", "1"]) + "::int",
            self.text() + "::text",
            some([self.text(), self.large(), self.large()]) + "::text",
            some(["NULL", "1.10", "'-99.99'"]) + "::numeric",
            some(["NULL", "0", "'-0'", "'NaN'", "0.1"]) + "::float8",
            some(["NULL", "'2024-02-29 12:00:00.000001+02'", "'infinity'", "'-infinity'"]) + "::timestamptz",
            some(["NULL", "'{}'", "'{NULL}'", "'{\"\"}'", "'{a,b}'"]) + "::text[]",
        ]
        return f"({', '.join(values)})"

    def text(self) -> str:
        return self.rng.choice(["NULL", "''", "'a'", self.large()])

    def large(self) -> str:
        return f"repeat('{self.rng.choice('xyz')}', 3000)"


@pytest.fixture(scope="module")
def work(servers: pg.Servers, tmp_path_factory: pytest.TempPathFactory) -> tuple[Sent, Moment]:
    """Random work on tables with every replica identity, and what the tables have at its end."""
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    print(f"seed {SEED} (PGOUTPUT_FAST_SEED)")
    database = pg.Database(servers[max(servers)])
    try:
        with database.slot("FOR ALL TABLES WITH (publish_via_partition_root = true)") as slot:
            made = CurrentWork(slot, database.version, f"{SEED} sink")
            made.create()
            moments = list(made.moments(60))
            payloads = [data for _, data in slot.peek(pg.all_options(database.version, binary=True))]
            slot.execute(*(f"DROP TABLE {name}" for name in made.tables))
    finally:
        database.drop()
    return Sent(payloads, made.tables, tmp_path_factory.mktemp("work") / "segments", 3), moments[-1]


def readable(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Rows as sorted texts that are equal exactly if the rows are."""
    return sorted(repr(dict(zip(names, map(_readable, row), strict=True))) for row in rows)


def _readable(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat()
    return comparable(value)
