"""A comparison finds exactly the rows that differ, whatever the key is."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pgoutput_fast.merge.effect.effect import current_schema
from pgoutput_fast.merge.local import LocalMerge
from pgoutput_fast.mirror.repair.compare import compare
from pgoutput_fast.mirror.repair.compare.compare import Comparison, Differences, UncomparableError
from pgoutput_fast.mirror.repair.compare.divisions import Ranges, divided
from support.current_tables import delta_table

_VALUES = pa.schema([("v", pa.string()), ("n", pa.float64())])
_KEYS: dict[str, list[tuple[str, pa.DataType, Any]]] = {
    "int": [("id", pa.int32(), lambda k: k - 500)],
    "text": [("id", pa.string(), lambda k: f"key {k}")],
    "pair": [("a", pa.int64(), lambda k: k % 7), ("b", pa.float64(), lambda k: k / 3)],
}


def _rows(fields: list[tuple[str, pa.DataType, Any]], chosen: dict[int, str | None]) -> pa.Table:
    columns = {name: pa.array([of(k) for k in chosen], kind) for name, kind, of in fields}
    columns |= {
        "v": pa.array([*chosen.values()], pa.string()),
        "n": pa.array([float("nan") if k % 2 else 0.5 for k in chosen], pa.float64()),
        "_commit_lsn": pa.array([7] * len(chosen), pa.int64()),
        "_unrepresentable": pa.nulls(len(chosen), pa.list_(pa.string())),
    }
    return pa.table(columns)


def _compared(table: LocalMerge, key: list[str], rows: pa.Table) -> Differences:
    read = []

    def pieces(where: str | None) -> Iterator[pa.Table]:
        read.append(where)
        yield from (rows.slice(begin, 300) for begin in range(0, rows.num_rows, 300))

    found = Comparison(table, key, pieces, rows.schema, [*key, *_VALUES.names]).run()
    assert len(read) <= 2
    return found


@pytest.mark.parametrize("kind", _KEYS)
def test_exactly_the_rows_that_differ_are_found(tmp_path: Path, kind: str) -> None:
    fields, dice = _KEYS[kind], random.Random(kind)
    key = [name for name, _, _ in fields]
    there: dict[int, str | None] = {k: f"v{k}" if k % 5 else None for k in range(1000)}
    table = delta_table(tmp_path, "t", file_bytes=1 << 13)
    schema = current_schema(pa.schema([*((name, kind) for name, kind, _ in fields), *_VALUES]))
    table.replace(_rows(fields, there).select(schema.names).to_batches(max_chunksize=200), schema, 7)
    for differ in (0, 1, 40):
        server = dict(there)
        gone = set(dice.sample(sorted(server), differ))
        server = {k: value for k, value in server.items() if k not in gone}
        changed = set(dice.sample(sorted(server), differ))
        server |= dict.fromkeys(changed, "other")
        new = {2000 + k for k in range(differ)}
        server |= dict.fromkeys(new, "new")
        shuffled = [*server.items()]
        dice.shuffle(shuffled)
        found = _compared(table, key, _rows(fields, dict(shuffled)))
        values = {tuple(of(k) for _, _, of in fields): k for k in {*there, *server}}
        for rows, expected in ((found.removed, gone), (found.changed, changed), (found.new, new)):
            assert {values[tuple(row[name] for name in key)] for row in rows.to_pylist()} == expected
        assert found.rows == len(server)
        assert found.different <= 3 * differ
    assert found.changed["v"].to_pylist() == ["other"] * 40


def test_what_cannot_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = _KEYS["int"]
    rows = _rows(fields, dict.fromkeys(range(200), "v"))
    schema = current_schema(pa.schema([("id", pa.int32()), *_VALUES]))
    table = delta_table(tmp_path, "t")
    table.replace(pa.concat_tables([rows, rows.slice(0, 1)]).select(schema.names).to_batches(), schema, 7)
    with pytest.raises(UncomparableError, match="several rows with the same key"):
        _compared(table, ["id"], rows)
    table.replace(rows.select(schema.names).to_batches(), schema, 8)
    with pytest.raises(UncomparableError, match="the server has several rows with the same key"):
        _compared(table, ["id"], pa.concat_tables([rows, rows.slice(0, 1)]))
    empty = rows.set_column(0, "id", pa.nulls(200, pa.int32()))
    with pytest.raises(UncomparableError, match="a key that has no Arrow form"):
        _compared(table, ["id"], empty)
    monkeypatch.setattr(compare, "_MOST_DIFFERENT", 10)
    with pytest.raises(UncomparableError, match="too many of its rows differ"):
        _compared(table, ["id"], rows.slice(100))


def test_rows_beside_differences_are_compared_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there are too many, that is said."""
    fields = _KEYS["int"]
    rows, server = (
        _rows(fields, {k: value if k % 100 == 5 else "same" for k in range(1000)}) for value in "ab"
    )
    schema = current_schema(pa.schema([("id", pa.int32()), *_VALUES]))
    table = delta_table(tmp_path, "t")
    table.replace(rows.select(schema.names).to_batches(), schema, 7)
    monkeypatch.setattr(compare, "_MOST_ROWS", 150)
    found = Comparison(table, ["id"], lambda _: iter([server]), server.schema, ["id", *_VALUES.names]).run()
    assert sorted(found.changed["id"].to_pylist()) == [k * 100 + 5 - 500 for k in range(10)]
    assert found.removed.num_rows == found.new.num_rows == 0
    monkeypatch.setattr(compare, "_MOST_TIMES", 2)
    with pytest.raises(UncomparableError, match="spread over too large a part of it"):
        Comparison(table, ["id"], lambda _: iter([server]), server.schema, ["id", *_VALUES.names]).run()


def test_conditions_have_all_keys_of_their_ranges() -> None:
    """Many ranges become fewer, wider ones. The least and the largest numbers are in some."""
    values = np.array([-(1 << 63), -5, -1, 0, 1, (1 << 63) - 1, *range(10, 60_000, 3)], np.int64)
    division = divided(["id"], [pa.table({"id": values})], [pa.int64()])
    assert isinstance(division, Ranges)
    numbers = division.numbers(pa.table({"id": values}))
    for step in (1, 2, 50):
        wanted = np.arange(0, division.count, step)
        sql = division.condition(wanted)
        assert sql is not None
        assert sql.count(" OR ") < 200
        terms = (
            sql.replace(" OPERATOR(pg_catalog.", " ")
            .replace(")", " ")
            .replace("(", " ")
            .replace("::pg_catalog.int8", "")
        )
        terms = (
            terms.replace(" AND ", " and ").replace(" OR ", ") or (").replace("'", "").replace("true", "True")
        )
        for value, number in zip(values[:200].tolist(), numbers[:200].tolist(), strict=True):
            inside = eval(f"({terms})", {"id": value})
            assert inside or number not in wanted
