"""Types of extensions in the tables of a mirror: current tables in every format, histories, queries, comparisons."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast.cli.main import main
from pgoutput_fast.mirror import verify
from reference.current import CurrentRows
from support import pg
from support.current_tables import KINDS
from support.extensions import TYPES, decoded_as_read, has_extension
from support.forms import and_slow
from support.mirrors import Place, current_of, history_of, opened


def _types_of(database: pg.Database) -> list[str]:
    return [name for name, case in TYPES.items() if has_extension(database, case.extension)]


@pytest.fixture(params=["pgvector and PostGIS", "PostgreSQL's own"])
def place(servers: pg.Servers, tmp_path: Any, request: pytest.FixtureRequest) -> Any:
    """An empty database of the newest server with these extensions."""
    wanted = {"vector", "postgis"} if request.param == "pgvector and PostGIS" else {"hstore", "cube"}
    for version in sorted(servers, reverse=True):
        with opened(servers[version], tmp_path) as found:
            if all(has_extension(found.database, name) for name in wanted):
                yield found
                return
    pytest.skip(f"no server here has {' and '.join(sorted(wanted))}")


def _plain(names: list[str], rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {row["k"]: [TYPES[name].plain(row[f"c_{name}"]) for name in names] for row in rows}


def _changes(table: str, names: list[str], literals: str) -> list[str]:
    return [
        *(
            f"UPDATE {table} SET c_{name} = {pg.literal(TYPES[name].values[-1])} WHERE k = 1"
            for name in names
        ),
        *(f"UPDATE {table} SET c_{name} = NULL WHERE k = 2" for name in names),
        f"DELETE FROM {table} WHERE k = 0",
        f"INSERT INTO {table} VALUES (10, {literals})",
        f"INSERT INTO {table} (k) VALUES (11)",
    ]


@pytest.mark.parametrize("format", and_slow(["delta"], [each for each in KINDS if each != "delta"]))
def test_current_tables_and_histories(place: Place, format: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = _types_of(place.database)
    columns = ", ".join(f"c_{name} {TYPES[name].sql}" for name in names)
    literals = [
        ", ".join(pg.literal(TYPES[name].values[k % len(TYPES[name].values)]) for name in names)
        for k in range(5)
    ]
    place.database.execute(
        f"CREATE TABLE keyed (k int PRIMARY KEY, {columns})",
        f"CREATE TABLE whole (k int, {columns})",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        *(f"INSERT INTO {table} VALUES ({k}, {row})" for table in ("keyed", "whole") for k, row in enumerate(literals)),
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )  # fmt: skip
    place.run(format=format)
    place.database.execute(
        *(each for table in ("keyed", "whole") for each in _changes(table, names, literals[1]))
    )
    place.run(format=format)
    reads = ", ".join(TYPES[name].read.format(f"c_{name}") for name in names)
    for table in ("keyed", "whole"):
        read = place.database.execute(f"SELECT k, {reads} FROM {table}")
        expected = {key: [decoded_as_read(each) for each in values] for key, *values in read}
        current = current_of(place.target, f"public.{table}", format=format)
        assert _plain(names, current.to_pylist()) == expected
        history = history_of(place.target, f"public.{table}")
        replayed = CurrentRows(["k"], pa.schema([field for field in history.schema if field.name[0] != "_"]))
        replayed.apply_changes(history.to_pylist())
        assert _plain(names, list(replayed.rows)) == expected
    for compared in verify(place.target, place.database.dsn):
        assert compared.equal, compared
    assert main(["query", str(place.target), "SELECT * FROM keyed", "--format", "json"]) == 0
    rows = {row["k"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows.keys() == expected.keys()
    if "hstore" in names:
        assert {key: row["c_hstore"] for key, row in rows.items()} == {
            key: values[names.index("hstore")] for key, values in expected.items()
        }
