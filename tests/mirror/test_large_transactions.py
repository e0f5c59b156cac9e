"""Transactions that are larger than the memory: they wait in files, and become one version of each table."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from pgoutput_fast.mirror import at, points
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.formats import open_current
from pgoutput_fast.tables.options import TableOptions
from support.forms import and_exhaustive, and_slow
from support.mirrors import Place, current_of, expect_equal, expect_replayed, place

__all__ = ["place"]

TABLES = {"public.keyed": ["id"], "public.whole": []}
# So even a small transaction is too large.
LIMITS: dict[str, dict[str, Any]] = {
    "pgoutput_fast.mirror.service.run": {"_MOST_ROWS": 150},
    "pgoutput_fast.mirror.follow.waiting": {"_PART_BYTES": 20_000},
    "pgoutput_fast.segments.committed": {"_PIECE_ROWS": 64},
}
TOTAL = 500 * 100
# One row pays all others: a part of it has another total.
MOVED = "UPDATE keyed SET n = n + CASE WHEN id = (SELECT max(id) FROM keyed) THEN 1 - (SELECT count(*) FROM keyed) ELSE 1 END"
# Balances move, keys move, large values stay as they are, rows come and go; and the total is the same behind it.
LARGE = [
    MOVED,
    "UPDATE keyed SET id = id + 10000 WHERE id % 3 = 0",
    "INSERT INTO keyed SELECT g, 'new', 0 FROM generate_series(20000, 20300) g",
    "UPDATE keyed SET id = id - 5000 WHERE id BETWEEN 10000 AND 10300",
    "DELETE FROM keyed WHERE id > 20100",
    "UPDATE keyed SET big = 'changed' WHERE id % 5 = 0",
    "UPDATE whole SET a = a % 7",
    "DELETE FROM whole WHERE a = 3",
    "INSERT INTO whole SELECT g % 4, 'x' FROM generate_series(1, 300) g",
]


def _prepare(place: Place) -> None:
    place.database.execute(
        "CREATE TABLE keyed (id int PRIMARY KEY, big text, n int)",
        "ALTER TABLE keyed ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO keyed SELECT g, repeat('x', 2100), 100 FROM generate_series(1, 500) g",
        "CREATE TABLE whole (a int, b text)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "INSERT INTO whole SELECT g, 'x' FROM generate_series(1, 200) g",
        "CREATE PUBLICATION mirrored FOR TABLE keyed, whole",
    )


def _in_one(place: Place, *statements: str) -> None:
    place.database.execute("; ".join(["BEGIN", *statements, "COMMIT"]))


@pytest.mark.parametrize(
    ("format", "in_step"),
    and_exhaustive(and_slow([("delta", True)], [("delta", False)]), [("duckdb", True)]),
)
def test_a_transaction_in_parts(
    place: Place, format: str, in_step: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, values in LIMITS.items():
        for name, value in values.items():
            monkeypatch.setattr(importlib.import_module(module), name, value)
    _prepare(place)
    place.run(format=format, in_step=in_step)
    before = at(place.target)
    _in_one(place, *LARGE)
    place.run(format=format, in_step=in_step)
    # Each table has one version more, and never had a part of the transaction.
    assert at(place.target) == {table: version + 1 for table, version in before.items()}
    _in_one(
        place, "TRUNCATE whole", *LARGE[:2], "INSERT INTO whole SELECT g, 'y' FROM generate_series(1, 400) g"
    )
    _in_one(place, MOVED)
    place.run(format=format, in_step=in_step)
    for table, key in TABLES.items():
        expect_equal(place, table, format=format)
        expect_replayed(place, table, key)
    assert not list((place.target / "_mirror" / "spill").iterdir())
    if format != "duckdb":
        for each in points(place.target):
            rows = current_of(place.target, "public.keyed", each.versions["public.keyed"], format)
            assert sum(rows["n"].to_pylist()) == TOTAL


@pytest.mark.slow
def test_killed_in_the_middle(place: Place) -> None:
    """The next one applies the transaction from its beginning. Readers have the version before until then."""
    _prepare(place)
    place.run()
    _in_one(place, *LARGE)
    place.killed(["pgoutput_fast.merge.local", "merge_effect", 4], limits=LIMITS)
    for table, version in at(place.target).items():
        assert open_current("delta", open_store(place.target), table, TableOptions()).version() == version
    place.run()
    for table, key in TABLES.items():
        expect_equal(place, table)
        expect_replayed(place, table, key)


@pytest.mark.slow
def test_memory(place: Place) -> None:
    """What the mirror and its capture need does not follow the size of a transaction."""
    most = 8 << 20
    limits = {
        "pgoutput_fast.mirror.service.run": {"_MOST_BYTES": most},
        "pgoutput_fast.mirror.follow.waiting": {"_PART_BYTES": most},
        "pgoutput_fast.tables.files": {"_MOST_WAITING": most},
        "pgoutput_fast.tables.data_files": {"_WAITING_BYTES": most},
        "pgoutput_fast.segments.committed": {"PIECE_BYTES": most},
    }
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION mirrored FOR TABLE t"
    )
    place.run()
    found, sizes = [], (80_000, 320_000)
    for rows in sizes:
        place.database.execute(
            f"INSERT INTO t SELECT g, repeat(md5(g::text), 32) FROM generate_series({rows}, {2 * rows - 1}) g"
        )
        found.append(place.peaks(limits=limits))
    for few, many in zip(*found, strict=True):
        assert many - few < 120 << 20, found  # of 240 MiB more, each at least twice
    assert current_of(place.target, "public.t").num_rows == sum(sizes)
