"""Tables in an object store: a local server that speaks S3. It is asked for both by pyarrow and by delta-rs."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast import spark as pgspark
from pgoutput_fast.segments import list_segments, read_segment
from pgoutput_fast.segments.names import unpublished_name
from pgoutput_fast.spark.tables import run as runs
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables import files as table_files
from pgoutput_fast.tables.files import TableFiles
from pgoutput_fast.tables.marker import end_marker, left_runs
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.table import Ordinal, OutcomeUnknownError
from support.buckets import Bucket, opened_bucket
from support.forms import and_exhaustive, and_slow
from support.lakes import assert_whole, data_files, make_dump, make_segments, running, settled, tables_of

FORMATS = ["parquet", "delta"]


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with opened_bucket("lake") as opened:
        yield opened


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stored") / "segments"
    make_segments(directory, tables=2, txns=30, segments=2)
    return directory


@pytest.fixture(scope="module")
def undisturbed(spark: Any, stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    target = tmp_path_factory.mktemp("undisturbed")
    pgspark.write_tables(stored, target)
    return tables_of("parquet", target)


def _options(bucket: Bucket) -> dict[str, str]:
    """What the tests' own reader needs."""
    return {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{bucket.endpoint}",
        "AWS_ALLOW_HTTP": "true",
    }


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_written_again_and_again(
    spark: Any, bucket: Bucket, stored: Path, undisturbed: Any, tmp_path: Path, format: str
) -> None:
    """In two steps, then with nothing new, then over a killed run, then anew, from segments that are there too."""
    target, segments = bucket.uri % tmp_path.name, tmp_path / "segments"
    segments.mkdir()
    for path in sorted(stored.glob("*.parquet")):
        (segments / path.name).write_bytes(path.read_bytes())
        written = pgspark.write_tables(segments, target, format=format)
        assert all(row.rows for row in written)
    again = pgspark.write_tables(segments, target, format=format)
    assert not any(row.rows for row in again)
    assert_whole(format, target, undisturbed, _options(bucket))
    copied = bucket.uri % f"{tmp_path.name}-segments"
    for path in stored.glob("*.parquet"):
        open_store(copied).put(path.name, path.read_bytes())
    pgspark.write_tables(copied, target, format=format, mode="overwrite")
    if format == "parquet":
        assert_whole(format, target, undisturbed)
    else:  # Delta keeps files of older versions
        assert {
            name: rows.to_pylist() for name, rows in tables_of(format, target, _options(bucket)).items()
        } == {name: rows.to_pylist() for name, rows in undisturbed.items()}


@pytest.mark.slow
@pytest.mark.classic("a driver of its own shares the JVM")
@pytest.mark.parametrize(
    ("format", "kill"),
    and_exhaustive(
        [
            ("parquet", ("pgoutput_fast.storage.stores", "_Remote.rename", 2)),
            ("delta", (runs.__name__, "Run.commit", 2)),
        ],
        [("parquet", (runs.__name__, "Run.commit", 1))],
    ),
    ids=str,
)
def test_a_killed_driver(
    spark: Any,
    bucket: Bucket,
    stored: Path,
    undisturbed: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,
    kill: Any,
) -> None:
    target = bucket.uri % tmp_path.name
    job = {
        "source": str(stored),
        "target": target,
        "arguments": {"format": format},
        "kill": kill,
        "errors": str(tmp_path / "errors"),
    }
    with running(job, spark) as driver:
        assert driver.ended() == -9, driver.errors()
    if "rename" in kill[1]:
        # A store without a rename copies, and then deletes: as if it was killed in between.
        store = open_store(target)
        hidden = next(each for each in data_files(target) if "/.part-" in each)
        store.put(hidden.replace("/.part-", "/part-"), store.read(hidden))
    monkeypatch.setattr(table_files, "LATE_SECONDS", 0.0)
    pgspark.write_tables(stored, target, format=format)
    settled(spark)
    assert_whole(format, target, undisturbed, _options(bucket))


@pytest.mark.slow
@pytest.mark.parametrize("format", and_exhaustive(["delta"], [each for each in FORMATS if each != "delta"]))
def test_a_stream(
    spark: Any, bucket: Bucket, stored: Path, undisturbed: Any, tmp_path: Path, format: str
) -> None:
    pgspark.register(spark)
    target = bucket.uri % tmp_path.name
    query = (
        spark.readStream.format("pgoutput")
        .options(emit="files", max_segments="1")
        .load(str(stored))
        .writeStream.foreachBatch(pgspark.table_sink(target, format=format))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert_whole(format, target, undisturbed, _options(bucket))


@pytest.mark.slow
def test_another_run_that_begins_meanwhile(
    spark: Any,
    bucket: Bucket,
    stored: Path,
    undisturbed: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, commit, refused = bucket.uri % tmp_path.name, runs.Run.commit, list[BaseException]()

    def meanwhile(*arguments: Any) -> None:
        if not refused:
            with pytest.raises(RuntimeError) as caught:
                pgspark.write_tables(stored, target)
            refused.append(caught.value)
        commit(*arguments)

    monkeypatch.setattr(runs.Run, "commit", meanwhile)
    pgspark.write_tables(stored, target)
    assert "writes tables to s3://lake/" in str(refused[0])
    assert "wait until it has finished" in str(refused[0])
    assert_whole("parquet", target, undisturbed)


@pytest.mark.parametrize("version", and_slow(["this"], ["earlier"]))
def test_another_run_that_took_over(
    spark: Any,
    bucket: Bucket,
    stored: Path,
    undisturbed: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
) -> None:
    """The first one fails before it commits. A driver of an earlier version ends it without a look at its lease."""
    target, commit = bucket.uri % tmp_path.name, runs.Run.commit
    store, unfinished = open_store(target), list[str]()

    def overtaken(run: runs.Run, *arguments: Any) -> None:
        monkeypatch.setattr(runs.Run, "commit", commit)
        if version == "earlier":
            end_marker(store, run.name)
        else:
            mark = {"token": "another", "host": "elsewhere", "pid": 7, "since": "now"}
            store.put("_lock.json", json.dumps(mark).encode())
            unfinished.append(f"{arguments[0]}/.part-another-1.parquet")
            store.put(unfinished[0], b"rows")
        commit(run, *arguments)

    monkeypatch.setattr(runs.Run, "commit", overtaken)
    said = {
        "this": r"process 7 on elsewhere \(since now\) writes tables to s3://lake/.* now.*This process ends",
        "earlier": r"this run may not write to s3://lake/.* Let only one process at a time",
    }
    with pytest.raises(RuntimeError, match=said[version]):
        pgspark.write_tables(stored, target)
    for name in unfinished:  # of the other process
        assert store.read(name) == b"rows"
        store.remove(name)
    pgspark.write_tables(stored, target)
    assert_whole("parquet", target, undisturbed)
    assert not [name for name in store.names() if "_lock" in name]
    assert not store.names("_lock")


@pytest.mark.slow
def test_a_commit_that_comes_late(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store reports an error, and makes the commit after the next run has cleaned up."""
    target, options = bucket.uri % tmp_path.name, TableOptions()

    def write(seq: int) -> None:
        rows = pa.record_batch({"_seq": [seq]})
        with runs.begin_run(target, "delta", options) as run:
            with TableFiles(run.store, run.name, run.hidden) as files:
                files.add("public.t", rows)
            run.commit("public.t", files.written, Ordinal(seq), rows.schema, "append")

    write(1)
    bucket.delay("_delta_log/")
    with pytest.raises(OSError, match="RequestTimeout") as caught:
        write(2)
    _expect_advice(caught.value)
    assert "\n" not in str(caught.value)
    with runs.begin_run(target, "delta", options):
        pass
    bucket.arrive()
    rows = tables_of("delta", target, _options(bucket))["public.t"]
    assert sorted(rows["_seq"].to_pylist()) == [1, 2]
    # An hour after another one, which never came.
    bucket.delay("_delta_log/")
    with pytest.raises(OutcomeUnknownError):
        write(3)
    # The run of the late commit is left, too: nobody has looked for its files yet.
    for seconds, files, left in ((table_files.LATE_SECONDS, 3, 3), (0.0, 2, 1)):
        monkeypatch.setattr(table_files, "LATE_SECONDS", seconds)
        with runs.begin_run(target, "delta", options):
            assert len(data_files(target)) == files
            assert len(left_runs(open_store(target))) == left
    assert not left_runs(open_store(target))


@pytest.mark.parametrize("format", FORMATS)
def test_a_store_that_refuses(spark: Any, bucket: Bucket, stored: Path, tmp_path: Path, format: str) -> None:
    begin, missing = time.monotonic(), bucket.uri.replace("@lake", "@nowhere") % tmp_path.name
    with pytest.raises(OSError, match=r"(?i)nowhere|NO_SUCH_BUCKET|does not exist") as caught:
        pgspark.write_tables(stored, missing, format=format)
    _expect_advice(caught.value)
    bucket.trust(0)
    try:
        with pytest.raises(
            OSError, match=r"(?i)access.?denied|InvalidAccessKeyId|ACCESS_KEY|forbidden|403"
        ) as caught:
            pgspark.write_tables(stored, bucket.uri % tmp_path.name, format=format)
    finally:
        bucket.trust(math.inf)
    _expect_advice(caught.value)
    assert time.monotonic() - begin < 600


def _expect_advice(problem: BaseException) -> None:
    (note,) = problem.__notes__
    assert "cannot be reached, or refuses" in note
    assert "Check that the bucket exists, the credentials, and the endpoint" in note
    assert "secret" not in note + str(problem)


@pytest.mark.slow
@pytest.mark.parametrize(("format", "at"), and_exhaustive([("parquet", "tasks")], [("delta", "commit")]))
def test_a_store_that_goes_away(
    spark: Any,
    stored: Path,
    undisturbed: Any,
    tmp_path: Path,
    format: str,
    at: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened_bucket("away") as bucket:
        target, gone, commit = bucket.uri % tmp_path.name, threading.Event(), runs.Run.commit

        def away(*arguments: Any) -> None:
            bucket.stop()
            gone.set()
            commit(*arguments)

        def stop() -> None:
            while not data_files(target):
                time.sleep(0.01)
            bucket.stop()
            gone.set()

        def held(*arguments: Any) -> None:
            """The tasks were faster than the thread that stops the store."""
            gone.wait(240)
            commit(*arguments)

        thread = threading.Thread(target=stop)
        if at == "commit":
            monkeypatch.setattr(runs.Run, "commit", away)
        else:
            monkeypatch.setattr(runs.Run, "commit", held)
            thread.start()
        begin = time.monotonic()
        with pytest.raises(Exception, match=r".") as caught:
            pgspark.write_tables(stored, target, format=format)
        assert gone.is_set()
        assert time.monotonic() - begin < 600
        text = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
        assert "cannot be reached, or refuses" in text
        assert "secret" not in text
        if at == "tasks":
            thread.join()
        monkeypatch.undo()
        bucket.start()
        settled(spark)
        monkeypatch.setattr(table_files, "LATE_SECONDS", 0.0)
        pgspark.write_tables(stored, target, format=format)
        assert_whole(format, target, undisturbed, _options(bucket))


@pytest.mark.slow
def test_segments_of_several_tasks(spark: Any, bucket: Bucket, stored: Path, tmp_path: Path) -> None:
    """The segments of a call that was killed before it renamed them are removed, the others are there."""
    make_dump(tmp_path / "dump", stored)
    wal = pgspark.tag(tmp_path / "dump", "place", spark=spark)
    target, local = bucket.uri % tmp_path.name, tmp_path / "segments"
    store = open_store(target)
    store.put(unpublished_name(0, 41), b"of a call that was killed")
    for directory in (target, local):
        written = pgspark.write_segments(wal, directory, segment_bytes=5_000)
        assert [each.path for each in list_segments(directory)] == written
        assert len(written) > 4
    assert sorted(store.names()) == sorted(each.name for each in local.iterdir())
    for here, there in zip(list_segments(local), list_segments(target), strict=True):
        assert read_segment(here.path) == read_segment(there.path)
        assert here.state == there.state
    assert pgspark.write_segments(wal, target) == []
