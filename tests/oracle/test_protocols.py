"""Edge values of every type under every protocol version and way of streaming that a server has, in text and binary.

That the values are the server's own is shown elsewhere, for plain transactions of the newest version: here all others
give the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import pgoutput_fast as pgo
from cells import built_in_cases
from cells.built_in_cases import has_xml, insert
from cells.scalar_cases import CASES, SEED, TEXT_LIKE
from support import pg
from support.oracle import kinds, plain_changes
from support.streaming import Streaming, streaming

pytestmark = pytest.mark.few_servers

WAYS = {1: ["off"], 2: ["off", "on"], 3: ["off", "on"], 4: ["off", "on", "parallel"]}
ALL_WAYS = [
    (version, way, binary) for version, ways in WAYS.items() for way in ways for binary in ("false", "true")
]


def every_type(database: pg.Database) -> Iterator[tuple[str, str, list[str | None], bool]]:
    """(name, type, values, whether text and binary give the same)."""
    version = database.version
    for name, case in CASES.items():
        if version >= case.since:
            values = case.values_for(version, random.Random(f"{SEED} {name}"))
            yield name, case.sql, [None, *(each for each in values if len(each) < 5000)], True
    for name, one in built_in_cases.CASES.items():
        if version >= one.since and (name != "xml" or has_xml(database)):
            yield f"b_{name}", one.sql, [None, *one.values_for(version, name)], one.read_binary is None


@pytest.fixture(scope="module")
def sent(database: pg.Database) -> Iterator[tuple[Streaming, set[str]]]:
    """A slot with two transactions: all values of all types with an array of each, some rolled back; and the same again."""
    print(f"seed {SEED} (PGOUTPUT_FAST_SEED)")
    database.execute(TEXT_LIKE.format("citext"), 'CREATE TABLE "odd ""name" ()')
    tables, same = [], set()
    with database.slot() as slot:
        for name, sql, values, is_same in every_type(database):
            insert(slot, f"v_{name}", sql, values)
            # Vectors are arrays to array_agg, which takes none that is null.
            whole = "min(id)" if sql in ("int2vector", "oidvector") else "array_agg(v ORDER BY id)"
            slot.execute(
                f"CREATE TABLE a_{name} AS SELECT 1 AS id, {whole} AS v FROM v_{name} "
                "WHERE octet_length(v::text) < 300 OR v IS NULL"
            )
            for table in (f"v_{name}", f"a_{name}"):
                slot.execute(f"CREATE TABLE c{table} (LIKE {table})")
                tables.append(table)
                same |= {f"c{table}"} if is_same else set()
    fills = [f"INSERT INTO c{table} SELECT * FROM {table} ORDER BY id" for table in tables]
    with streaming(database, {"streaming": None, "messages": None}) as stream:
        stream.run(0, "BEGIN", *fills, "SAVEPOINT s", *fills, "ROLLBACK TO s", *fills[::5], "COMMIT")
        stream.run(0, *fills[::3])
        yield stream, same


def decoded(
    stream: Streaming, version: int, way: str, binary: str, view: str
) -> tuple[str, dict[str, Any], Any]:
    """(tags, rows of each table in the order of their commits, what the rejects say)."""
    options: dict[str, str | None] = {"proto_version": str(version)}
    if stream.database.version >= 14:
        options |= {"binary": binary, "streaming": way if way != "off" else None}
    payloads = stream.peek(options)
    out = pgo.decode([data for _, data in payloads], options=pgo.Options(transactions=view))
    rows: dict[str, Any] = {}
    for row in plain_changes([out]):
        rows.setdefault(row["relation"][2], []).append((row["columns"], row["_unrepresentable"]))
    rejects = [(row["relation"], row["column"], row["reason"]) for row in out.rejects.to_pylist()]
    return kinds(payloads), rows, sorted(rejects)


@pytest.fixture(scope="module")
def plain(sent: tuple[Streaming, set[str]]) -> tuple[dict[str, Any], Any]:
    """What protocol version 1 gives in text."""
    stream, _ = sent
    tags, rows, rejects = decoded(stream, 1, "off", "false", "as_sent")
    assert "S" not in tags
    assert len(rows) > 140
    return rows, rejects


@pytest.mark.newest_server
@pytest.mark.parametrize(("version", "way", "binary"), ALL_WAYS)
def test_every_protocol_version_gives_the_same_values(
    sent: tuple[Streaming, set[str]], plain: Any, version: int, way: str, binary: str
) -> None:
    stream, same = sent
    if version > int(pg.best_options(stream.database.version)["proto_version"]):
        pytest.skip("a version that this server does not speak")
    if binary == "true" and stream.database.version < pg.FIRST_BINARY_VERSION:
        pytest.skip("binary values exist since 14")
    wanted, wanted_rejects = plain
    for view in ("committed",) if way != "off" else ("as_sent", "committed"):
        tags, rows, rejects = decoded(stream, version, way, binary, view)
        assert ("S" in tags) == (way != "off")
        assert set(rows) == set(wanted)
        for table, values in wanted.items():
            if binary == "false" or table in same:
                assert rows[table] == values, table
            else:
                assert len(rows[table]) == len(values)
        assert rejects == wanted_rejects
