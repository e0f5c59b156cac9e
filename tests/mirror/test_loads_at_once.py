"""Loads of several tables at the same time: small ones each with a session of its own, large ones in turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pgoutput_fast.mirror import verify
from pgoutput_fast.mirror.load import loads, source
from pgoutput_fast.snapshot import snapshot
from support.mirrors import Place, current_of, expect_equal, loads_of, mirrored_rows, place, rows_of

__all__ = ["place"]

_TABLES = [f"t{k}" for k in range(8)]


def _make(place: Place) -> None:
    for name in _TABLES:
        place.database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, note text)",
            f"INSERT INTO {name} SELECT g, '{name}' FROM generate_series(1, 2000) g",
        )
    place.database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")


# A table of more bytes than this is large.
_SMALL = {"small": source._LEAST_BYTES, "large": 8192}
_SIZES = pytest.mark.parametrize("size", _SMALL)


@contextmanager
def _counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many tables were being loaded whenever another load began."""
    load, running, most = loads.load_table, set[int](), list[int]()

    def counted(*given: Any, **more: Any) -> None:
        running.add(threading.get_ident())
        most.append(len(running))
        try:
            load(*given, **more)
        finally:
            running.discard(threading.get_ident())

    with monkeypatch.context() as context:
        context.setattr(loads, "load_table", counted)
        yield most


@pytest.mark.slow
@_SIZES
@pytest.mark.parametrize(("format", "at_once"), [("delta", 4), ("iceberg", 4), ("duckdb", 1)])
def test_tables_that_are_loaded_at_the_same_time(
    place: Place, monkeypatch: pytest.MonkeyPatch, format: str, at_once: int, size: str
) -> None:
    _make(place)
    monkeypatch.setattr(source, "_LEAST_BYTES", _SMALL[size])
    with _counted(monkeypatch) as most:
        place.run(format=format, threads=4)
    assert len(most) == len(_TABLES)
    assert min(2, at_once) <= max(most) <= at_once
    expect_equal(place, *(f"public.{name}" for name in _TABLES), format=format)
    place.database.execute(*(f"UPDATE {name} SET note = 'new' WHERE id < 9" for name in _TABLES))
    place.run(format=format)
    for name in _TABLES:
        assert loads_of(place, f"public.{name}") == 1
    assert all(each.equal for each in verify(place.target, place.database.dsn))


@pytest.mark.slow
@_SIZES
def test_one_that_cannot_be_loaded(place: Place, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    _make(place)
    monkeypatch.setattr(source, "_LEAST_BYTES", _SMALL[size])
    place.database.execute("ALTER TABLE t3 ADD _seq int")
    with place.mirror(threads=4) as mirror:
        mirror.run(until_lsn="now")
        stopped = {each.table: each.error for each in mirror.status() if each.state != "follow"}
    assert list(stopped) == ["public.t3"]
    assert "'_seq' of public.t3 has the name of a metadata column" in str(stopped["public.t3"])


@pytest.mark.slow
def test_one_large_table_is_read_at_a_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all sessions, while others are written."""
    _make(place)
    run_readers, reading, sessions = snapshot.run_readers, list[int](), list[int]()

    def counted(connect: Any, ranges: Any, threads: int, *given: Any) -> None:
        reading.append(1)
        sessions.append(threads * len(reading))
        run_readers(connect, ranges, threads, *given)
        reading.pop()

    monkeypatch.setattr(source, "_LEAST_BYTES", _SMALL["large"])
    monkeypatch.setattr(snapshot, "run_readers", counted)
    with _counted(monkeypatch) as most:
        place.run(threads=3)
    assert sessions == [3] * len(_TABLES)
    assert max(most) > 1


@pytest.mark.slow
@_SIZES
@pytest.mark.parametrize("number", [1, 4, 7])
def test_killed(place: Place, number: int, size: str) -> None:
    _make(place)
    kill = ["pgoutput_fast.mirror.follow.history", "AppendTable.commit", number]
    limits = {"pgoutput_fast.mirror.load.source": {"_LEAST_BYTES": _SMALL[size]}}
    place.killed(kill, "--threads", "4", limits=limits)
    place.database.execute("DELETE FROM t1 WHERE id = 1")
    place.run(threads=4)
    for name in _TABLES:
        names, expected = rows_of(place.database, name)
        assert mirrored_rows(current_of(place.target, f"public.{name}"), names) == expected
        assert loads_of(place, f"public.{name}") == 1
