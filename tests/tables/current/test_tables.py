"""Every kind of current table does what a plain model does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import deltalake
import pytest

from pgoutput_fast.merge.effect.effect import Effect
from support.current_tables import KEYS, SLOW_KEYS, RandomEffects, canonical_in, open_table
from support.ducklake import lakes
from support.forms import and_exhaustive, and_slow
from support.readers import expect_model


# DuckDB takes most time to open and to close a file, so it has fewer cases.
@pytest.mark.parametrize(
    ("kind", "key"),
    lakes("text and int8", "float8", "timestamptz", None)
    + and_exhaustive(
        and_slow(
            [
                # Keys are looked for in the same way in files of both kinds.
                *(("delta", key) for key in [*KEYS, None] if key not in SLOW_KEYS),
                ("iceberg", None),
            ],
            [
                ("duckdb", "text and int8"),
                *(("delta", key) for key in SLOW_KEYS),
                ("iceberg", "numeric"),
                ("iceberg", "bool and int4"),
                ("duckdb", None),
            ],
        ),
        [
            ("iceberg", "int8"),
            ("iceberg", "text"),
            ("iceberg", "timestamptz"),
            ("duckdb", "float8"),
        ],
    ),
    ids=str,
)
def test_effects_do_what_they_do_to_a_model(kind: str, key: str | None, tmp_path: Path) -> None:
    effects, table = RandomEffects(len(str(key)), key), open_table(kind, tmp_path)
    assert (table.position(), table.version(), table.schema()) == (None, None, None)
    dice = random.Random(7)
    for position in range(10, 190, 10):
        effect = effects.next()
        table.apply(effect, position)
        effects.model.assert_equal(table, effects.compared)
        if kind != "duckdb" and position % 60 == 0:
            expect_model(effects, kind, tmp_path)
        version = table.version()
        table.apply(effect, position)  # it is there already
        assert (table.position(), table.version()) == (position, version)
        if dice.random() < 0.3:
            table = open_table(kind, tmp_path)
        if not kind.startswith("duck") and dice.random() < 0.2:
            dice.choice([table.vacuum, lambda: _optimised(kind, tmp_path)])()
            effects.model.assert_equal(table, effects.compared)
    if key is not None:
        _assert_found(table, effects)


def _optimised(kind: str, place: Path) -> None:
    """As another program does it. Its files have other statistics."""
    if kind == "delta":
        deltalake.DeltaTable(place / "public.orders").optimize.compact()


def _assert_found(table: Any, effects: RandomEffects) -> None:
    effect = Effect(effects.key, False, effects.keys([]), effects.rows(range(40)))
    effects.model.apply(effect)
    table.apply(effect, 1000)
    model, wanted = effects.model, effects.keys(range(0, 100, 3))
    keys = {model.key_of(row, effects.key) for row in wanted.to_pylist()}
    columns = [name for name in model.names if name not in effects.key]
    found = table.find(wanted, [*columns, "no such column"])
    assert found.schema.names == [*effects.key, *columns, "no such column"]
    expected = [row for row in model.rows if model.key_of(row, effects.key) in keys]
    text = canonical_in(table)
    got = [text([row[name] for name in columns]) for row in found.to_pylist()]
    assert sorted(got) == sorted(text([row.get(name) for name in columns]) for row in expected)
    assert found.column("no such column").null_count == found.num_rows == len(expected) > 5
