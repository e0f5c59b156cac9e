"""Loads that are interrupted within a table: its ranges stay, and the changes in between make the table exact."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast.cli.main import main
from pgoutput_fast.mirror import status_of
from pgoutput_fast.mirror.load import source
from pgoutput_fast.mirror.load.ranges import LoadedRanges
from pgoutput_fast.snapshot import LoadProgress
from pgoutput_fast.storage.stores import open_store
from support.buckets import opened_bucket
from support.capturing import wait_until
from support.forms import and_exhaustive, and_slow
from support.mirrors import Place, current_of, expect_equal, expect_replayed, history_of, loads_of, place

__all__ = ["place"]

_RANGES, _SOURCE = "pgoutput_fast.mirror.load.ranges", "pgoutput_fast.mirror.load.source"
_ADD = "LoadedRanges.add"
# Some thirty ranges of the table below.
LIMITS = {_SOURCE: {"_LEAST_BYTES": 8 * 8192}}


@pytest.fixture
def filled(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A table with values outside of its rows, and free space in its first pages, so that updates move rows there."""
    monkeypatch.setattr(source, "_LEAST_BYTES", 8 * 8192)
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, note text, long text)",
        "ALTER TABLE t ALTER long SET STORAGE EXTERNAL",
        "ALTER TABLE t SET (autovacuum_enabled = off)",
        "INSERT INTO t SELECT g, 0, repeat('x', 700), CASE WHEN g % 10 = 0 THEN repeat(g::text, 900) END "
        "FROM generate_series(1, 2200) g",
        "DELETE FROM t WHERE id <= 1000 AND id % 2 = 0",
    )
    place.database.execute("VACUUM t")
    place.database.execute("CREATE PUBLICATION mirrored FOR TABLE t")
    return place


def _expect_whole(place: Place, format: str = "delta") -> None:
    expect_equal(place, "public.t", format=format)
    expect_replayed(place, "public.t", ["id"])
    assert not list((place.target / "_mirror" / "loads").iterdir())


def _ranges_read(place: Place, **more: Any) -> tuple[int, int]:
    """Runs the mirror. Returns how many ranges of pages it has read, and how many the table has."""
    found: list[LoadProgress] = []
    place.run(progress=found.append, **more)
    return len(found), found[-1].all_ranges if found else 0


def _change(place: Place, dice: random.Random) -> None:
    """Changes rows of ranges that are read, and of others, in every way."""
    ids = dice.sample(range(1001, 2200), 96)
    place.database.execute(
        *(f"UPDATE t SET n = n + 1 WHERE id = {each}" for each in ids[:30]),
        *(f"DELETE FROM t WHERE id = {each}" for each in ids[30:40]),
        *(f"UPDATE t SET id = -id WHERE id = {each}" for each in ids[40:50]),
        *(f"UPDATE t SET long = repeat('y', 5000) WHERE id = {each}" for each in ids[50:60]),
        *(f"INSERT INTO t VALUES ({20000 + each}, 1, 'new') ON CONFLICT DO NOTHING" for each in ids[60:70]),
        # A row that is away for a while, and one that is there for a while.
        *(f"DELETE FROM t WHERE id = {each}" for each in ids[70:80]),
        *(f"INSERT INTO t VALUES ({each}, 2, 'again')" for each in ids[70:80]),
        *(f"INSERT INTO t VALUES ({40000 + each}, 1, 'new')" for each in ids[80:]),
        *(f"DELETE FROM t WHERE id = {40000 + each}" for each in ids[80:]),
        # Rows that a load may read before they are deleted.
        "DELETE FROM t WHERE id >= 100000",
        f"INSERT INTO t SELECT {dice.randrange(100, 1000)} * 1000 + g, 3, repeat('z', 700) FROM generate_series(1, 300) g",
        # Their long values are not sent.
        "UPDATE t SET n = n + 1 WHERE id % 50 = 0",
    )


def test_ranges_that_were_read_stay(filled: Place) -> None:
    filled.killed([_RANGES, _ADD, -6], limits=LIMITS)
    read, ranges = _ranges_read(filled)
    assert (read, ranges > 20) == (ranges - 6, True)
    assert loads_of(filled, "public.t") == 1
    _expect_whole(filled)


@pytest.mark.newest_server
@pytest.mark.parametrize("kind", ["gone", "cut", "forged"])
def test_ranges_whose_files_are_others(filled: Place, kind: str) -> None:
    """A file that somebody removed or cut, or a list with one range more: all of them are read again."""
    filled.killed([_RANGES, _ADD, -6], limits=LIMITS)
    (path,) = (filled.target / "_mirror" / "loads").glob("*/ranges.json")
    values = json.loads(path.read_text())
    *_, last = LoadedRanges(open_store(filled.target), path.parent.name).done.values()
    file = path.with_name(f"{last.files}.parquet")
    if kind == "gone":
        file.unlink()
    elif kind == "cut":
        file.write_bytes(file.read_bytes()[:100])
    else:
        values["ranges"]["../elsewhere"] = next(iter(values["ranges"].values()))
        path.write_text(json.dumps(values))
    read, ranges = _ranges_read(filled)
    assert read == ranges
    _expect_whole(filled)


def test_progress(filled: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """In the mirror's metrics, and for another process, also after a kill."""
    filled.killed([_RANGES, _ADD, -6], limits=LIMITS)
    (found,) = status_of(filled.target, filled.database.dsn)
    assert found.load is not None
    assert (found.state, found.load.ranges, found.load.eta_seconds is not None) == ("load", 6, True)
    assert f"to be loaded, {found.load.rows:,} rows, " in str(found)
    assert main(["status", str(filled.target), "--dsn", filled.database.dsn]) == 0
    assert f"public.t: loading: {found.load}" in capsys.readouterr().out
    pages: list[str] = []
    with filled.mirror(progress=lambda now: pages.append(mirror.metrics.to_prometheus())) as mirror:
        filled.run_in(mirror)
        last = mirror.metrics.to_prometheus()
    of = f'{{slot="{filled.slot}",table="public.t"}}'
    shown = [
        float(line.split()[1])
        for page in pages
        for line in page.splitlines()
        if line.startswith(f"pgoutput_fast_mirror_load_rows{of}")
    ]
    assert shown == sorted(shown)
    assert found.load.rows < shown[0] < shown[-1] <= 1700
    assert any(f"pgoutput_fast_mirror_load_left_seconds{of} " in page for page in pages)
    assert "load_rows" not in last


def test_changes_between_the_ranges(filled: Place) -> None:
    """Rows that were moved from a range that was not read into one that was read are not lost."""
    dice = random.Random(1)
    for _ in range(3):
        filled.killed([_RANGES, _ADD, -4], limits=LIMITS)
        _change(filled, dice)
    read, ranges = _ranges_read(filled)
    assert read == ranges - 12
    assert loads_of(filled, "public.t") == 1
    _expect_whole(filled)
    _change(filled, dice)
    filled.run()
    _expect_whole(filled)


_CURRENT, _HISTORY = "pgoutput_fast.merge.local", "pgoutput_fast.mirror.follow.history"
_TABLES, _STATE = "pgoutput_fast.mirror.follow.tables", "pgoutput_fast.mirror.state.mirror_state"


@pytest.mark.slow
@pytest.mark.parametrize("snapshot", and_exhaustive(["shared"], ["ranges"]))
def test_killed_at_a_step_of_its_end(filled: Place, snapshot: str) -> None:
    """While the changes are applied to the ranges, and between any two commits of the load."""
    dice = random.Random(8)
    for kill in (
        [_RANGES, _ADD, -9],
        [_CURRENT, "LocalMerge.replace", 1],  # a table of the ranges
        [_CURRENT, "LocalMerge.replace", -1],
        [_CURRENT, "LocalMerge.apply_parts", -1],
        [_CURRENT, "LocalMerge.replace", 2],  # the current table
        [_CURRENT, "LocalMerge.replace", -2],
        [_HISTORY, "AppendTable.expect_own", 1],
        [_TABLES, "MirroredTable.loaded", 1],
        [_TABLES, "MirroredTable.loaded", -1],
    ):
        filled.killed(kill, "--snapshot", snapshot, limits=LIMITS)
        _change(filled, dice)
    filled.run()
    _expect_whole(filled)
    filled.database.execute(
        "ALTER TABLE t ADD COLUMN m float8 DEFAULT random()"
    )  # it differs from row to row
    for kill in (
        [_RANGES, _ADD, -9],
        [_TABLES, "MirroredTable.loaded", 1],  # the history has the rows already
        [_TABLES, "MirroredTable.loaded", -1],
    ):
        filled.killed(kill, "--snapshot", snapshot, limits=LIMITS)
        _change(filled, dice)
    filled.run()
    _expect_whole(filled)


@pytest.mark.parametrize("format", and_slow(["iceberg"], ["duckdb"]))
def test_types_and_formats(place: Place, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that go through the files of the ranges have the values that they have otherwise."""
    monkeypatch.setattr(source, "_LEAST_BYTES", 8 * 8192)
    place.database.execute(
        "CREATE TABLE t (id uuid, name text, at time, d date, ts timestamptz, span interval, amount numeric(12, 3), "
        "doc jsonb, raw bytea, tags text[], x float8, on_ boolean, long text, PRIMARY KEY (id, name))",
        "ALTER TABLE t ALTER long SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT md5(g::text)::uuid, 'it''s \\ ' || g, '12:34:56.789'::time + g * '1 s'::interval, "
        "'2024-02-29'::date + g, '2024-02-29 12:00+00'::timestamptz + g * '1 h'::interval, g * '1 mon'::interval, g / 7.0, "
        """jsonb_build_object('g', g), decode(md5(g::text), 'hex'), ARRAY['a', NULL, g::text], g / 3.0, g % 2 = 0, """
        "CASE WHEN g % 7 = 0 THEN repeat(g::text, 900) END FROM generate_series(1, 3000) g",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    place.killed([_RANGES, _ADD, -3], "--format", format, limits=LIMITS)
    place.database.execute("UPDATE t SET x = x + 1 WHERE amount < 100", "DELETE FROM t WHERE x > 900")
    read, ranges = _ranges_read(place, format=format)
    assert read == ranges - 3
    _expect_as_loaded_in_one_go(place, "public.t", format)


def _expect_as_loaded_in_one_go(place: Place, table: str, format: str) -> None:
    """Checks that the table equals one of a mirror whose load was not interrupted."""
    other = Place(place.database, Path(str(place.target) + "_other"))
    other.slot += "_other"
    try:
        other.run(format=format)
        names = [
            name
            for name in current_of(other.target, table, format=format).schema.names
            if name != "_commit_lsn"
        ]
        rows = [current_of(each.target, table, format=format).select(names) for each in (place, other)]
        assert rows[0].num_rows
        assert rows[0].schema == rows[1].schema
        assert Counter(map(repr, rows[0].to_pylist())) == Counter(map(repr, rows[1].to_pylist()))
        assert history_of(place.target, table).schema == history_of(other.target, table).schema
    finally:
        other.drop()


@pytest.mark.parametrize(
    "alter",
    and_slow(
        ["TRUNCATE t"],
        [
            "VACUUM FULL t",
            "ALTER TABLE t ADD COLUMN m int DEFAULT 7",
            "ALTER TABLE t DROP COLUMN note",
            "ALTER TABLE t REPLICA IDENTITY FULL",
            "ALTER TABLE t ALTER n TYPE bigint",
            "ALTER TABLE t RENAME TO u; DELETE FROM u WHERE id % 3 = 1; ALTER TABLE u RENAME TO t",
        ],
    ),
)
def test_altered_in_between(filled: Place, alter: str) -> None:
    """All ranges are read again."""
    filled.killed([_RANGES, _ADD, -6], limits=LIMITS)
    filled.database.execute("UPDATE t SET n = 5 WHERE id % 3 = 0")
    filled.database.execute(*alter.split("; "))
    filled.database.execute("INSERT INTO t (id, n) VALUES (-1, 1)")
    read, ranges = _ranges_read(filled)
    assert read == ranges
    expect_equal(filled, "public.t")


def test_a_damaged_list_of_ranges(filled: Place) -> None:
    """No range counts as done, and the load begins again."""
    filled.killed([_RANGES, _ADD, -6], limits=LIMITS)
    (path,) = filled.target.glob("_mirror/loads/*/ranges.json")
    store, directory, whole = open_store(filled.target), path.parent.name, json.loads(path.read_text())
    assert len(LoadedRanges(store, directory).done) == 6
    for damaged in (
        {"ranges": [1]},
        {"fingerprint": {}},
        {"fingerprint": []},
        {"range_bytes": None},
        {"progress": 5},
    ):
        path.write_text(json.dumps(whole | damaged))
        assert not LoadedRanges(store, directory).done
    filled.run()
    expect_equal(filled, "public.t")


@pytest.mark.slow
def test_not_published_for_a_while(filled: Place) -> None:
    filled.killed([_RANGES, _ADD, -6], limits=LIMITS)
    filled.database.execute(
        "ALTER PUBLICATION mirrored DROP TABLE t",
        "DELETE FROM t WHERE id % 3 = 0",
        "ALTER PUBLICATION mirrored ADD TABLE t",
    )
    read, ranges = _ranges_read(filled)
    assert read == ranges
    _expect_whole(filled)


@pytest.mark.slow
def test_left_out_for_a_while(filled: Place) -> None:
    """The history lacks the changes of this time."""
    filled.database.execute("CREATE TABLE u (id int PRIMARY KEY)", "ALTER PUBLICATION mirrored ADD TABLE u")
    _stopped(filled, 6)
    filled.database.execute("DELETE FROM t WHERE id % 3 = 0")
    filled.run(exclude=["public.t"])
    read, ranges = _ranges_read(filled)
    assert read in (ranges, ranges + 1)  # with that of the other table
    _expect_whole(filled)


@pytest.mark.slow
def test_an_object_store_that_is_away_meanwhile(filled: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The mirror tries again, and its load goes on."""
    read: list[LoadProgress] = []
    with opened_bucket("lakes") as bucket, ThreadPoolExecutor(1) as pool:
        filled.target = bucket.uri % "mine"

        def back() -> None:
            wait_until(lambda: "the mirror tries again" in caplog.text)
            bucket.start()

        def progress(now: LoadProgress) -> None:
            read.append(now)
            if len(read) == 6:
                bucket.stop()
                pool.submit(back)

        with filled.mirror(progress=progress) as mirror:
            filled.run_in(mirror)
            _change(filled, random.Random(7))
            filled.run_in(mirror)
        assert 6 < len(read) <= read[-1].all_ranges + 1
        assert read[-1].resumed_rows > 0
        expect_equal(filled, "public.t")
        assert loads_of(filled, "public.t") == 1


@pytest.mark.slow
def test_a_later_load(filled: Place) -> None:
    """Of a table that is altered and loaded again. Its history goes on."""
    filled.run()
    filled.database.execute(
        "ALTER TABLE t ADD COLUMN m float8 DEFAULT random()"
    )  # it differs from row to row
    filled.killed([_RANGES, _ADD, -6], limits=LIMITS)
    _change(filled, random.Random(2))
    read, ranges = _ranges_read(filled)
    assert read == ranges - 6
    assert loads_of(filled, "public.t") == 2
    _expect_whole(filled)


@pytest.mark.slow
def test_a_table_without_a_key_is_loaded_from_its_beginning(filled: Place) -> None:
    filled.database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    filled.killed(["pgoutput_fast.snapshot.progress", "ProgressCounter.add", -1], limits=LIMITS)
    _change(filled, random.Random(3))
    filled.run()
    expect_equal(filled, "public.t")


@pytest.mark.slow
def test_five_kills_at_random_cost_few_rows(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """The server counts the rows that it reads, also those that are lost with a killed process."""
    rows, dice = 200_000, random.Random(5)
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, note text)",
        f"INSERT INTO t SELECT g, 0, repeat('x', 200) FROM generate_series(1, {rows}) g",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    place.database.execute("VACUUM ANALYZE t")

    def rows_read() -> int:
        ((count,),) = place.database.execute(
            "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 't'"
        )
        return int(count)

    before, kills = rows_read(), 5
    for _ in range(kills):
        _kill(place, dice.randrange(1, 8), dice.random() / 20)
        place.database.execute(f"UPDATE t SET n = n + 1 WHERE id = {dice.randrange(1, rows)}")
    place.run()
    wait_until(lambda: not _readers(place))
    read = rows_read() - before
    with capsys.disabled():
        print(f"{kills} kills: {read:,} rows read for {rows:,}, {read / rows:.3f} times")
    assert read <= 1.15 * rows
    assert loads_of(place, "public.t") == 1
    expect_equal(place, "public.t")


def _kill(place: Place, ranges: int, seconds: float) -> None:
    """Kills a mirror some time after it has read some more ranges: within a range, its file, or the list of them."""

    def done() -> int:
        return len(LoadedRanges(open_store(place.target), "public.t").done)

    goal = done() + ranges
    # The process kills itself: if this one was late, the load would be complete.
    place.killed([_RANGES, _ADD, -ranges], limits={_SOURCE: {"_LEAST_BYTES": 1 << 16}}, after=seconds)
    assert done() >= goal


def _readers(place: Place) -> int:
    """Sessions of loads: the server counts their rows when they end."""
    ((count,),) = place.database.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'COPY%'"
    )
    return int(count)


@pytest.mark.slow
def test_told_to_stop_within_a_table(filled: Place) -> None:
    """As by a signal: the next run goes on."""
    _stopped(filled, 5)
    read, ranges = _ranges_read(filled)
    assert 0 < read <= ranges - 5
    _expect_whole(filled)


def _stopped(place: Place, ranges: int) -> None:
    """Runs a mirror, and stops it when it has read so many ranges."""
    stop = threading.Event()
    with place.mirror(progress=lambda now: now.ranges >= ranges and stop.set()) as mirror:
        mirror.run(stop=stop)
        assert mirror.unfinished is not None


@pytest.mark.parametrize("snapshot", ["shared", "ranges"])
def test_what_vacuum_can_remove_during_a_load(filled: Place, snapshot: str) -> None:
    """With ranges, no transaction and no slot of the load holds rows back that were deleted before a range was read."""
    filled.database.execute(
        "CREATE TABLE other (id int)",
        "CREATE TABLE w (id int PRIMARY KEY)",
        "ALTER PUBLICATION mirrored ADD TABLE w",
    )
    kept, dice = [], random.Random(4)

    def vacuumed() -> int:
        filled.database.execute("VACUUM other")
        ((nbytes,),) = filled.database.execute("SELECT pg_relation_size('other')")
        return int(nbytes)

    def progress(now: LoadProgress) -> None:
        if now.table != "public.t" or now.ranges >= now.all_ranges:
            return
        filled.database.execute("INSERT INTO other SELECT generate_series(1, 1000)", "DELETE FROM other")
        if snapshot == "ranges":
            wait_until(lambda: vacuumed() == 0)  # other sessions read the catalogs now and then
        kept.append(vacuumed())
        if now.ranges % 8 == 3:
            _change(filled, dice)

    filled.run(snapshot=snapshot, progress=progress)
    assert len(kept) > 20
    assert snapshot == "ranges" or min(kept) > 0
    filled.run()
    assert loads_of(filled, "public.t") == 1
    _expect_whole(filled)


@pytest.mark.slow
def test_ranges_in_transactions_of_their_own_that_are_killed(filled: Place) -> None:
    dice = random.Random(6)
    for _ in range(3):
        filled.killed([_RANGES, _ADD, -4], "--snapshot", "ranges", limits=LIMITS)
        _change(filled, dice)
    read, ranges = _ranges_read(filled, snapshot="ranges")
    assert read == ranges - 12
    assert loads_of(filled, "public.t") == 1
    _expect_whole(filled)
