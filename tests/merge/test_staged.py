"""Several effects in one commit do what they do one after the other; and readers see none of them before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast.merge.effect.effect import Effect, Unfilled, current_schema
from pgoutput_fast.mirror import MirrorBusyError
from support.current_tables import KINDS, RandomEffects, open_table
from support.ducklake import lakes
from support.forms import and_slow

SCHEMA = current_schema(pa.schema({"id": pa.int64(), "big": pa.string(), "n": pa.int64()}))


@pytest.mark.parametrize(
    ("kind", "key"),
    lakes("text and int8", None)
    + and_slow(
        [
            *(("delta", key) for key in ("text and int8", None)),
            ("iceberg", None),
            ("duckdb", None),
        ],
        [
            *(("delta", key) for key in ("int8", "text", "timestamptz", "bool and int4")),
            ("iceberg", "text and int8"),
            ("duckdb", "text and int8"),
        ],
    ),
    ids=str,
)
def test_effects_in_one_commit(kind: str, key: str | None, tmp_path: Path) -> None:
    effects, table = RandomEffects(3 + len(str(key)), key), open_table(kind, tmp_path)
    dice = random.Random(5)
    for position in range(10, 80, 10):
        parts = [effects.next() for _ in range(dice.randint(1, 5))]
        seen = [table.version()]

        def watched(parts: list[Effect] = parts, seen: list[Any] = seen) -> Iterator[Effect]:
            for each in parts:
                if not kind.startswith("duck"):  # which one connection has open
                    seen.append(open_table(kind, tmp_path).version())
                yield each

        table.apply_parts(watched(), position)
        assert len(set(seen)) == 1
        effects.model.assert_equal(table, effects.compared)
        assert table.position() == position
        if kind == "delta":
            # What a later part took away again does not stay.
            versions = range(table.version() + 1)
            named = {file.name for number in versions for file in table.table._load(number).files}
            assert {path.name for path in (tmp_path / "public.orders").glob("*.parquet")} == named


@pytest.mark.parametrize("kind", KINDS + lakes(()))
def test_values_of_earlier_parts(kind: str, tmp_path: Path) -> None:
    """A value that a part lacks may be in the table, or in a part before; its row may have had another key then."""
    table = open_table(kind, tmp_path)
    table.apply(_effect([(1, "one", 0), (2, "two", 0)]), 10)
    parts = [
        _effect([(2, None, 1)], gone=[], lacks=[2]),
        _effect([(3, "three", 2)]),
        _effect([(13, None, 3), (12, None, 3)], gone=[3, 2], lacks=[3, 2]),
        _effect([(12, None, 4)], lacks=[12]),
    ]
    table.apply_parts(parts, 20)
    rows = sorted((row["id"], row["big"], row["n"]) for row in table.read().to_pylist())
    assert rows == [(1, "one", 0), (12, "two", 4), (13, "three", 3)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_fails(kind: str, tmp_path: Path) -> None:
    table = open_table(kind, tmp_path)
    table.apply(_effect([(1, "one", 0)]), 10)
    files, version = sorted(tmp_path.rglob("*.parquet")), table.version()
    with pytest.raises(ValueError, match="the table lacks 1 row that changes refer to"):
        table.apply_parts([_effect([(7, "seven", 0)]), _effect([(8, None, 1)], lacks=[9])], 20)
    assert (table.position(), table.version(), table.read().num_rows) == (10, version, 1)
    assert sorted(tmp_path.rglob("*.parquet")) == files


@pytest.mark.parametrize("kind", KINDS)
def test_another_process_has_moved_the_table(kind: str, tmp_path: Path) -> None:
    table, other = open_table(kind, tmp_path), open_table(kind, tmp_path)
    table.apply(_effect([(1, "one", 0)]), 10)
    other.apply_parts([_effect([(2, "two", 0)])], 20, 10)
    version = other.version()
    with pytest.raises(MirrorBusyError, match="another process mirrors into it"):
        table.apply_parts([_effect([(3, "three", 0)])], 30, 10)
    table.apply_parts([_effect([(2, "again", 0)])], 20, 10)  # it is there already
    assert (table.position(), table.version()) == (20, version)
    assert sorted(table.read()["big"].to_pylist()) == ["one", "two"]


def _effect(rows: list[tuple[int, str | None, int]], gone: Any = (), lacks: Any = ()) -> Effect:
    """Rows that come. Their value `big` is that of the rows with the keys `lacks`, if there are some."""
    made = [{"id": id, "big": big, "n": n, "_commit_lsn": 1} for id, big, n in rows]
    keys = pa.table({"id": pa.array(lacks, pa.int64())})
    unfilled = [Unfilled("big", pa.array(range(len(lacks)), pa.int64()), keys)] if lacks else []
    gone_rows = pa.table({"id": pa.array(gone, pa.int64())})
    return Effect(("id",), False, gone_rows, pa.Table.from_pylist(made, schema=SCHEMA), unfilled)
