"""Keys that do not tell rows apart once they are in Arrow, or name other rows later: such a table stops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast import spark as pgspark
from pgoutput_fast.merge.keys import check_key
from pgoutput_fast.segments import list_segments
from pgoutput_fast.snapshot import Snapshot
from support.forms import and_slow
from support.mirrors import Place, current_of, expect_equal, place

__all__ = ["place"]

ARRAY = "CREATE TABLE t (k int[] PRIMARY KEY, n int)"
BOTH = "INSERT INTO t VALUES ('{1,2}', 1), ('[0:1]={1,2}', 2)"


def _stopped(place: Place) -> str:
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        (status,) = mirror.status()
    return str(status.error)


@pytest.mark.slow
@pytest.mark.parametrize("changed", and_slow(["DELETE FROM t WHERE n = 2"], ["UPDATE t SET n = 3"]))
def test_an_array_that_loses_its_bound_as_a_change(place: Place, changed: str) -> None:
    place.database.execute(
        ARRAY, "CREATE PUBLICATION mirrored FOR TABLE t", "INSERT INTO t VALUES ('{1,2}', 1)"
    )
    place.run()
    place.database.execute("INSERT INTO t VALUES ('{3}', 1)", "UPDATE t SET n = 2")
    place.run()
    expect_equal(place, "public.t")
    place.database.execute("INSERT INTO t VALUES ('[0:1]={1,2}', 2)", changed)
    assert "column 'k' of the key of public.t has an array whose lower bound is not 1" in _stopped(place)
    assert len(current_of(place.target, "public.t")) == 2, "the rows of before are still there"


@pytest.mark.slow
def test_an_array_that_loses_its_bound_in_a_load(place: Place) -> None:
    place.database.execute(ARRAY, BOTH, "CREATE PUBLICATION mirrored FOR TABLE t")
    assert "column 'k' of the key of public.t has an array whose lower bound is not 1" in _stopped(place)
    place.database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    with place.mirror() as mirror:
        mirror.reload("public.t")
        place.run_in(mirror)
    place.database.execute("DELETE FROM t WHERE n = 2")
    place.run()
    assert [(row["k"], row["n"]) for row in current_of(place.target, "public.t").to_pylist()] == [([1, 2], 1)]


@pytest.mark.slow
@pytest.mark.parametrize("ambiguous", [False, True])
def test_an_array_becomes_a_part_of_the_key(place: Place, ambiguous: bool) -> None:
    """Its bounds did not matter before: so the table is loaded again, once."""
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, k int[] NOT NULL UNIQUE, n int)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
        "INSERT INTO t VALUES (1, '{1,2}', 1), (2, '{5}', 1)",
    )
    place.run()
    if ambiguous:
        place.database.execute("INSERT INTO t VALUES (3, '[0:1]={1,2}', 3)")
        place.run()
    expect_equal(place, "public.t")
    place.database.execute(
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_k_key", "UPDATE t SET n = 7 WHERE id = 1"
    )
    if ambiguous:
        assert "column 'k' of the key of public.t has an array whose lower bound is not 1" in _stopped(place)
        return
    place.run()
    expect_equal(place, "public.t")
    place.database.execute("UPDATE t SET n = 8 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        (status,) = mirror.status()
    assert (status.state, status.error) == ("follow", None)
    expect_equal(place, "public.t")


@pytest.mark.slow
def test_a_name_becomes_the_key(place: Place) -> None:
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, r regclass NOT NULL UNIQUE)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
        "INSERT INTO t VALUES (1, 'pg_class')",
    )
    place.run()
    place.database.execute(
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_r_key", "UPDATE t SET id = 2 WHERE id = 1"
    )
    assert "column 'r' of the key of public.t names objects of the server" in _stopped(place)


@pytest.mark.slow
def test_a_composite_with_such_an_array(place: Place) -> None:
    place.database.execute(
        "CREATE TYPE ca AS (a int[], b text)",
        "CREATE TABLE t (k ca PRIMARY KEY, n int)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
        "INSERT INTO t VALUES (ROW('{1,2}', 'x'), 1)",
    )
    place.run()
    place.database.execute("INSERT INTO t VALUES (ROW('[0:1]={1,2}', 'x'), 2)", "DELETE FROM t WHERE n = 2")
    assert "column 'k' of the key of public.t has an array whose lower bound is not 1" in _stopped(place)


@pytest.mark.parametrize("kind", ["regclass", "regclass[]", "a_domain", "a_composite", "a_composite[]"])
def test_types_that_name_objects(place: Place, kind: str) -> None:
    place.database.execute(
        "CREATE DOMAIN a_domain AS regclass",
        "CREATE TYPE a_composite AS (a int, b regtype)",
        f"CREATE TABLE t (k {kind} PRIMARY KEY, n int, r regclass)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    with Snapshot(place.database.dsn, ["mirrored"]) as snapshot:
        relation, types = snapshot.tables["public.t"].relation, snapshot.catalog.types
        with pytest.raises(
            ValueError, match=r"column 'k' of the key of public\.t names objects of the server"
        ):
            check_key(relation, types)
        check_key(replace(relation, replica_identity="f"), types)
        check_key(
            replace(relation, columns=(replace(relation.columns[1], key=True), relation.columns[2])), types
        )


@pytest.mark.slow
def test_a_key_that_names_objects(place: Place) -> None:
    place.database.execute(
        "CREATE TABLE t (k regclass PRIMARY KEY, n int)", "CREATE PUBLICATION mirrored FOR TABLE t"
    )
    said = _stopped(place)
    assert "column 'k' of the key of public.t names objects of the server" in said
    assert "Give the column the type oid" in said
    # Elsewhere than in a key they are what they are.
    place.database.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (n)", "INSERT INTO t VALUES ('pg_class', 1)"
    )
    with place.mirror() as mirror:
        mirror.reload("public.t")
        place.run_in(mirror)
    expect_equal(place, "public.t")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("regclass", "pg_class", r"column 'k' of the key of public\.t names objects of the server"),
        (
            "int[]",
            "[0:1]={1,2}",
            r"column 'k' of the key of public\.t has an array whose lower bound is not 1",
        ),
    ],
)
def test_a_current_table_of_spark(
    place: Place, spark: Any, tmp_path: Path, kind: str, value: str, said: str
) -> None:
    place.database.execute(
        f"CREATE TABLE t (k {kind} PRIMARY KEY, n int)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    segments = tmp_path / "segments"
    with place.mirror(segments=segments) as mirror:
        mirror.run(until_lsn="now")
    place.database.execute(f"INSERT INTO t VALUES ('{value}', 1)")
    with place.mirror(segments=segments) as mirror:
        mirror.run(until_lsn="now")
    assert list_segments(segments)
    query = (
        spark.readStream.format("pgoutput")
        .option("emit", "files")
        .load(str(segments))
        .writeStream.foreachBatch(pgspark.current_sink(tmp_path / "lake"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match=said):
        query.awaitTermination()
