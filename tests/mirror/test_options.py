"""Options of a mirror: current table and history take each form of a value, or the mirror refuses the option."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from pgoutput_fast import Options
from pgoutput_fast.mirror import fresh
from support.fresh import ahead, position_now
from support.mirrors import Place, current_of, history_of, place

__all__ = ["place"]

FORMS: list[dict[str, Any]] = [
    {"uuid": "fixed_size_binary"},
    {"uuid": "arrow.uuid"},
    {"strings": "string_view"},
    {"numeric": "float64"},
    {"numeric": pa.decimal128(38, 6)},
]
OTHERS = [
    {"transactions": "committed"},
    {"metadata_prefix": "x"},
    {"tables": ["public.t"]},
    {"columns": {"public.t": ["id"]}},
    {"plain": True},
    {"schemas": {"public.t": pa.schema({"id": pa.int64()})}},
    {"extra_columns": "drop"},
]
FIRST = "00000000-0000-0000-0000-000000000001"


@pytest.mark.slow
@pytest.mark.parametrize("format", ["delta", "iceberg", "duckdb"])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form.values())))
def test_forms_of_values(place: Place, form: dict[str, Any], format: str) -> None:
    place.database.execute(
        "CREATE TABLE t (id uuid PRIMARY KEY, ids uuid[], n numeric, ns numeric[], s text, ss text[], span numrange)",
        f"INSERT INTO t SELECT '{FIRST}', '{{{FIRST}}}', 1.5, '{{2.5}}', 'a', '{{b}}', '[1.5,2)'",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    more = {"format": format, "options": Options(on_error="quarantine", **form)}
    place.run(**more)
    change = "UPDATE t SET s = s || 'c'; INSERT INTO t SELECT gen_random_uuid(), ids, n, ns, s, ss, span FROM t LIMIT 1"
    place.database.execute(change)
    place.run(**more)
    with ahead(place, **more):
        place.database.execute("UPDATE t SET s = s || 'd'")
        expected = _expected(place, form)
        found = fresh(place.target, "public.t", None, position_now(place)).to_pylist()
        assert sorted(map(_shown, found)) == expected
    place.run(**more)
    rows = current_of(place.target, "public.t", format=format).to_pylist()
    assert sorted(map(_shown, rows)) == expected
    history = history_of(place.target, "public.t").to_pylist()
    assert {_shown(row) for row in history} >= set(expected)
    assert all(row["_unrepresentable"] is None for row in history)


def _expected(place: Place, form: dict[str, Any]) -> list[tuple[str, ...]]:
    found = place.database.execute("SELECT id::text, ids[1]::text, n::float8, ns[1]::float8, s, ss[1] FROM t")
    return sorted(tuple(map(str, row)) for row in found)


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    ids = [
        str(UUID(bytes=each)) if isinstance(each, bytes) else str(each) for each in (row["id"], row["ids"][0])
    ]
    numbers = [str(float(each)) for each in (row["n"], row["ns"][0])]
    return (*ids, *numbers, row["s"], row["ss"][0])


@pytest.mark.parametrize("option", OTHERS, ids=lambda option: next(iter(option)))
def test_options_that_are_refused(place: Place, option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"a mirror needs the default of the option {next(iter(option))}"):
        place.mirror(options=Options(**option))
