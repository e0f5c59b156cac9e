"""What decodes the payloads that `tag` returned tags them itself: the same rows, and no payload goes back to the JVM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.spark.dataframes.catalog import read_catalog
from pgoutput_fast.spark.dataframes.tagged import untagged_of
from pgoutput_fast.spark.tagging.tag import tag_payloads
from support.forms import and_slow
from support.interleaved import everything
from support.plans import plan_text
from support.streams import RandomChoices, listed_outcomes, make_stream
from support.written_tables import NAMES, PAYLOADS


def _streams() -> list[bytes]:
    """With DDL, streams that interleave, subtransactions rolled back, two-phase commits."""
    stream = everything()
    payloads = stream.payloads[: min(stream.sessions)]
    for seed in range(20):
        made = make_stream(RandomChoices(seed), 10)
        more = made.payloads[: min(made.sessions, default=len(made.payloads))]
        try:
            pgo.tag(payloads + more)
        except pgo.DecodeError:  # it needs what another stream left open
            continue
        payloads = payloads + more
    return payloads


def _frame(spark: Any, payloads: list[bytes], way: str, place: Path) -> Any:
    rows = pa.table({"place": pa.array(range(len(payloads))), "data": pa.array(payloads, pa.binary())})
    if way == "shuffled":
        return spark.createDataFrame(rows).repartition(3)
    for at in range(0, rows.num_rows, 100):
        pq.write_table(rows.slice(at, 100), place / f"{at:05}.parquet")
    return [str(place)] if way == "files" else spark.read.parquet(str(place))


@pytest.fixture(scope="module", params=and_slow(["files"], ["in order", "shuffled"]))
def frame(request: pytest.FixtureRequest, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _frame(spark, PAYLOADS, request.param, tmp_path_factory.mktemp("dump"))


@pytest.fixture(scope="module")
def tagged(frame: Any) -> Any:
    return _tagged(frame)


def _tagged(frame: Any) -> Any:
    wal = pgspark.tag(frame, "place", payload="data")
    assert untagged_of(wal) is not None
    assert untagged_of(wal.select("*")) is None
    return wal


def _sorted(rows: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows.toArrow().to_pylist()
    return sorted(found, key=str)


@pytest.mark.parametrize("way", and_slow(["files"], ["in order", "shuffled"]))
def test_the_catalog_and_the_outcomes_are_those_of_the_tagged_payloads(
    spark: Any, tmp_path: Path, way: str
) -> None:
    wal = _tagged(_frame(spark, _streams(), way, tmp_path))
    again = wal.select("*")
    assert read_catalog(wal).to_json() == read_catalog(again).to_json()
    assert _sorted(pgspark.outcomes(wal)) == _sorted(pgspark.outcomes(again)) != []


@pytest.mark.parametrize("way", and_slow(["files"], ["in order", "shuffled"]))
def test_the_first_pass_says_what_another_one_would(spark: Any, tmp_path: Path, way: str) -> None:
    frame = _frame(spark, _streams(), way, tmp_path)
    wal = tag_payloads(frame, "place", "data", None, None, None, "error", "raise", None, None, commits=True)
    untagged = untagged_of(wal)
    assert untagged is not None
    without_another: Any = None
    surveyed = replace(untagged, headers=without_another).full_survey
    wanted = replace(untagged, commits=False).full_survey
    assert surveyed.relations == wanted.relations
    assert listed_outcomes(surveyed.outcomes) == listed_outcomes(wanted.outcomes) != ([], [])
    for survey in (surveyed, wanted):
        assert [row["seq"] for row in survey.descriptions] == sorted(
            row["seq"] for row in survey.descriptions
        )
    assert {bytes(row["body"]) for row in surveyed.descriptions} == {
        bytes(row["body"]) for row in wanted.descriptions
    }


@pytest.mark.parametrize("transactions", and_slow(["committed"], ["as_sent"]))
def test_changes_are_those_of_the_tagged_payloads(tagged: Any, transactions: Any) -> None:
    again, rows = tagged.select("*"), 0
    for name in NAMES:
        got = pgspark.changes(tagged, name, transactions=transactions)
        assert plan_text(got).count("MapInArrow") == 1
        found = _sorted(got)
        assert found == _sorted(pgspark.changes(again, name, transactions=transactions))
        rows += len(found)
    assert rows > 0


@pytest.mark.slow
@pytest.mark.parametrize("transactions", and_slow(["committed"], ["as_sent"]))
def test_tables_are_those_of_the_tagged_payloads(tagged: Any, tmp_path: Path, transactions: Any) -> None:
    found = []
    for name, wal in (("once", tagged), ("twice", tagged.select("*"))):
        rows = pgspark.write_tables(wal, tmp_path / name, transactions=transactions)
        found.append([(each.table, each.rows, each.first, each.last, each.position) for each in rows])
        again = pgspark.write_tables(wal, tmp_path / name, transactions=transactions)
        assert sum(each.rows for each in again) == 0
    assert found[0] == found[1]
    assert sum(rows for _, rows, *_ in found[0]) > 0
    for table, rows, *_ in found[0]:
        if rows:
            once, twice = (
                ds.dataset(str(tmp_path / name / table)).to_table().sort_by("_seq").to_pylist()
                for name in ("once", "twice")
            )
            assert once == twice


def test_cached_payloads_are_used(frame: Any) -> None:
    wal = pgspark.tag(frame, "place", payload="data").cache()
    try:
        assert untagged_of(wal) is None
        got = pgspark.changes(wal, NAMES[0], transactions="as_sent")
        assert "InMemoryTableScan" in plan_text(got)
    finally:
        wal.unpersist()
