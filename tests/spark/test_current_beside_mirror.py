"""`current_sink` beside a mirror of the same target: it takes up what the mirror has, or says why it cannot go on."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast import spark as pgspark
from pgoutput_fast.mirror import at, fresh, points
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.protocol.lsn import parse_lsn
from pgoutput_fast.segments import list_segments
from pgoutput_fast.storage.stores import open_store
from support.capturing import drop_when_free
from support.current_queries import Query
from support.current_streams import Sent, assert_as_reference, batch_of
from support.current_work import Moment, work
from support.mirrors import Place, current_of, expect_equal, lose_rows, make_two_tables, place

__all__ = ["place", "work"]


def _two_tables(place: Place, **arguments: Any) -> None:
    make_two_tables(place)
    place.run(**arguments)


@pytest.mark.slow
def test_segments_behind_a_repair(spark: Any, place: Place) -> None:
    """Ordinals begin again in another directory. No batch is taken for one that the tables have."""
    _two_tables(place)
    database, old = place.database, Query(spark, place)
    for n in range(3):
        database.execute(f"INSERT INTO a VALUES ({n})")
        old.follow()
    drop_when_free(database.dsn, place.slot)
    database.execute("INSERT INTO a VALUES (10)")
    with place.mirror() as mirror:
        mirror.repair()
    new = place.target / "_segments" / "stream-1"
    query = Query(spark, place, "_segments/stream-1")
    for n in range(11, 13):  # the first ordinals were there before the repair, too
        database.execute(f"INSERT INTO a VALUES ({n})")
        query.follow()
        expect_equal(place, "public.a", "public.b")
    _expect_other_stream(spark, place, new)
    error = rf"are not those of the mirror in .*: let the query read {re.escape(str(new))}, with a new"
    with pytest.raises(ValueError, match=error):
        pgspark.current_sink(place.target)(batch_of(spark, new.parent, 0, 1), 0)


def _expect_other_stream(spark: Any, place: Place, new: Path) -> None:
    """A table of changes has those of one stream: a sink does not add what comes behind the repair."""
    changes = place.target.parent / "changes"

    def write(directory: Path) -> dict[Path, bytes]:
        batch = batch_of(spark, directory, 0, list_segments(directory)[-1].last_seq)
        pgspark.table_sink(changes)(batch, 0)
        return {each: each.read_bytes() for each in changes.rglob("*") if each.is_file()}

    write(new.parent)
    before = write(new.parent)
    error = rf"public\.a belongs to another stream of slot '{place.slot}' of .* The slot was made again"
    with pytest.raises(ValueError, match=error):
        write(new)
    assert write(new.parent) == before


@pytest.mark.slow
def test_a_mirror_that_a_query_cannot_go_on_behind(spark: Any, place: Place) -> None:
    _two_tables(place, format="iceberg")
    database = place.database
    database.execute("INSERT INTO a VALUES (1)")
    with pytest.raises(ValueError, match=r"has tables in the format 'iceberg', and the sink in 'delta'"):
        Query(spark, place).follow()
    memory = MirrorState(open_store(place.target))
    beginning = memory.beginning()
    assert beginning is not None
    memory.set_beginning(beginning.at("repair", beginning.lsn))
    with pytest.raises(ValueError, match=r"a load or a repair of the mirror .* run the mirror first"):
        Query(spark, place, format="iceberg").follow()
    memory.set_beginning(beginning)
    database.execute("CREATE TABLE c (id int)", "INSERT INTO c VALUES (1)")
    with pytest.raises(ValueError, match=r"does not have public\.c: run the mirror, which loads it"):
        Query(spark, place, format="iceberg").follow()
    assert not (place.target / "current" / "public.c").exists()


@pytest.mark.slow
def test_a_table_that_the_mirror_has_stopped(spark: Any, place: Place) -> None:
    _two_tables(place)
    database = place.database
    lose_rows(place, "public.b")
    database.execute("UPDATE b SET id = 2", "INSERT INTO b VALUES (3)")
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
    database.execute("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (4)")
    error = r"public\.b does not follow .* lacks 1 row .*Load it with Mirror\.reload .*, or leave it out with tables="
    for tables in (None, ["public.b"]):
        with pytest.raises(ValueError, match=error):
            Query(spark, place, tables=tables).follow()
    query = Query(spark, place, tables=["public.a"])
    query.follow()
    expect_equal(place, "public.a")
    assert at(place.target).keys() == {"public.a"}
    with place.mirror() as mirror:
        mirror.reload("public.b")
    database.execute("INSERT INTO b VALUES (5)")
    Query(spark, place).follow()
    expect_equal(place, "public.a", "public.b")


def test_tables_that_were_left_out(spark: Any, place: Place) -> None:
    """What a query took for some tables is not taken for the others."""
    _two_tables(place)
    database = place.database
    database.execute("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (2)")
    Query(spark, place, tables=["public.a"]).follow()
    Query(spark, place).follow()
    expect_equal(place, "public.a", "public.b")


@pytest.mark.slow
def test_a_table_that_is_added_behind_a_batch(spark: Any, work: tuple[Sent, Moment], tmp_path: Path) -> None:
    """Nobody has loaded it. So it needs all segments, and an old checkpoint does not give them."""
    sent, _ = work
    batches, (one, other) = list(sent.batches()), sorted(sent.keys)[:2]
    narrow = pgspark.current_sink(tmp_path, [f"public.{one}"])
    narrow(batch_of(spark, sent.directory, *batches[0]), 0)
    for tables, said in (
        ([f"public.{one}", f"public.{other}"], rf"keep public\.{other} in"),
        (None, rf"keep all tables but public\.{one} in"),
    ):
        wider = pgspark.current_sink(tmp_path, tables)
        with pytest.raises(ValueError, match=rf"{said} .* Start the query with a new checkpoint"):
            wider(batch_of(spark, sent.directory, *batches[1]), 1)
    for number, (first, last) in enumerate(batches):
        wider(batch_of(spark, sent.directory, first, last), number)
    assert_as_reference(sent, tmp_path, "delta")


@pytest.mark.slow
def test_a_mirror_that_runs_between_two_batches(spark: Any, place: Place) -> None:
    """No point has one table from before it, and another from behind it."""
    _two_tables(place)
    database, query = place.database, Query(spark, place)
    both = "BEGIN; INSERT INTO a VALUES ({0}); INSERT INTO b VALUES ({0}); COMMIT"
    database.execute(both.format(9))
    query.follow()
    database.execute(both.format(10))
    place.run()
    recorded = points(place.target)
    database.execute("INSERT INTO a VALUES (11)")
    query.follow()
    expect_equal(place, "public.a", "public.b")
    seen = points(place.target)
    assert seen[:-1] == recorded
    for each in seen:
        a = set(current_of(place.target, "public.a", each.versions["public.a"])["id"].to_pylist())
        b = set(current_of(place.target, "public.b", each.versions["public.b"])["id"].to_pylist())
        assert a - {11} == b - {1}


@pytest.mark.slow
def test_a_batch_of_which_a_mirror_has_more(spark: Any, place: Place) -> None:
    """The points of the mirror stay, and none is recorded at which the tables were not."""
    _two_tables(place)
    database = place.database
    for n in range(2, 4):
        database.execute(f"INSERT INTO b VALUES ({n})")
        place.run()
    recorded = points(place.target)
    first = list_segments(place.target / "_segments")[0]
    batch = batch_of(spark, place.target / "_segments", first.first_seq, first.last_seq)
    pgspark.current_sink(place.target)(batch, 0)
    assert points(place.target) == recorded


def test_a_mirror_behind_a_query_knows_the_keys(spark: Any, place: Place) -> None:
    """Its current tables have the rows. Its histories take them, and readers of these need the keys."""
    _two_tables(place)
    database = place.database
    database.execute("INSERT INTO a VALUES (1)")
    lsn = parse_lsn(database.execute("SELECT pg_current_wal_lsn()::text")[0][0])
    Query(spark, place).follow()
    place.run()
    record = MirrorState(open_store(place.target)).table("public.a")
    assert record is not None
    assert record.key_at(lsn) == ("id",)


@pytest.mark.slow
def test_a_table_of_a_mirror_that_is_lost(spark: Any, place: Place) -> None:
    """Also if no point has it: the mirror has loaded it."""
    _two_tables(place)
    database = place.database
    database.execute("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (2)")
    Query(spark, place, tables=["public.a"]).follow()
    assert at(place.target).keys() == {"public.a"}
    shutil.rmtree(place.target / "current" / "public.b")
    database.execute("INSERT INTO b VALUES (3)")
    with pytest.raises(
        ValueError, match=r"current table of public\.b in .* is gone, and a new one .*Mirror\.reload"
    ):
        Query(spark, place).follow()
    with place.mirror() as mirror:
        mirror.reload("public.b")
    database.execute("INSERT INTO b VALUES (4)")
    Query(spark, place).follow()
    expect_equal(place, "public.a", "public.b")


@pytest.mark.slow
def test_an_array_joins_the_key_of_a_mirrored_table(spark: Any, place: Place) -> None:
    database = place.database
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, part int[] NOT NULL, UNIQUE (id, part))",
        "CREATE PUBLICATION mirrored FOR TABLE a",
        "INSERT INTO a VALUES (1, '{1}')",
    )
    place.run()
    both = "ALTER TABLE a REPLICA IDENTITY USING INDEX a_id_part_key"
    database.execute(both, "INSERT INTO a VALUES (2, '{2}')")
    place.run()  # the mirror knows this key, and what comes then changes it without the mirror
    database.execute("ALTER TABLE a REPLICA IDENTITY DEFAULT", "INSERT INTO a VALUES (3, '{3}')")
    Query(spark, place).follow()
    database.execute(both, "INSERT INTO a VALUES (4, '{4}')")
    with pytest.raises(ValueError, match=r"public\.a: its key now has the column 'part'"):
        Query(spark, place).follow()
    with place.mirror() as mirror:
        mirror.reload("public.a")
    database.execute("INSERT INTO a VALUES (5, '{5}')")
    Query(spark, place).follow()
    rows = current_of(place.target, "public.a").select(["id", "part"]).sort_by("id").to_pylist()
    assert rows == [{"id": k, "part": [k]} for k in range(1, 6)]


@pytest.mark.slow
def test_the_namespace_of_the_mirror(spark: Any, place: Place) -> None:
    _two_tables(place, namespace="north_")
    place.database.execute("INSERT INTO a VALUES (1)", "UPDATE b SET id = 2")
    with pytest.raises(
        ValueError, match="has the namespace 'north_', and the sink '': give the sink the same"
    ):
        Query(spark, place).follow()
    Query(spark, place, namespace="north_").follow()
    assert sorted(each.name for each in (place.target / "current").iterdir()) == [
        "north_public.a", "north_public.b"
    ]  # fmt: skip
    assert fresh(place.target, "public.a", ["id"])["id"].to_pylist() == [1]
    assert sorted(at(place.target)) == ["public.a", "public.b"]
    place.database.execute("DELETE FROM a", "UPDATE b SET id = 3")
    place.run(namespace="north_")
    assert fresh(place.target, "public.a", ["id"]).num_rows == 0
    assert fresh(place.target, "public.b", ["id"])["id"].to_pylist() == [3]
