"""The log of a Delta table without delta-rs: what it says is what delta-rs says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.delta.conditional import put_new
from pgoutput_fast.tables.delta.log import LogState, entry, has_entry, read_state, write_entry
from pgoutput_fast.tables.delta.table import uri_and_options
from support import numbered
from support.buckets import opened_bucket
from support.current_tables import delta_table
from support.marked import move_to_sidecars, read_with_delta_rs


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Of a table with marked rows, and eight versions."""
    table = numbered.load(delta_table(tmp_path, "t", file_bytes=100, merge="on_read"))
    for position in range(2, 9):
        table.apply(numbered.effect([position * 100], [position * 100 + 1, 2000 + position]), position)
    return tmp_path / "t" / "_delta_log"


def _state(log: Path, number: int = 7, known: LogState | None = None) -> LogState:
    return read_state(open_store(log.parent.parent), "t", number, known)


def _entry(log: Path, number: int) -> Path:
    return log / f"{number:020d}.json"


def _plain(state: LogState) -> Any:
    """Without what a checkpoint of delta-rs leaves out, or has as a null."""
    adds = {
        path: {name: value for name, value in add.items() if value is not None and name != "dataChange"}
        for path, add in state.adds.items()
    }
    return state.number, adds, state.vectors, state.protocol


def test_every_version_has_the_files_and_vectors_of_delta_rs(log: Path) -> None:
    known = None
    for number in range(8):
        state, table = _state(log, number), deltalake.DeltaTable(log.parent, number)
        assert set(state.adds) == set(pa.table(table.get_add_actions())["path"].to_pylist())
        vectors = pa.table(table.deletion_vectors()).to_pylist()
        rows = {each["filepath"].rpartition("/")[2]: each["selection_vector"] for each in vectors}
        read = {
            path: vector.positions(open_store(log.parent.parent), "t", 1000).tolist()
            for path, vector in state.vectors.items()
        }
        assert read == {path: [k for k, stays in enumerate(kept) if not stays] for path, kept in rows.items()}
        assert state.metadata["id"] == str(table.metadata().id)
        known = _state(log, number, known)
        assert known == state
    assert len(state.vectors) == 7


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_checkpoints(log: Path, parts: int) -> None:
    """Also one in several parts, as Delta for Spark writes it for a large table."""
    expected = _state(log)
    deltalake.DeltaTable(log.parent, 5).create_checkpoint()
    (checkpoint,) = log.glob("*.parquet")
    if parts > 1:
        rows = pq.read_table(checkpoint)
        checkpoint.unlink()
        size = -(-rows.num_rows // parts)
        for k in range(parts):
            name = f"{5:020d}.checkpoint.{k + 1:010d}.{parts:010d}.parquet"
            pq.write_table(rows.slice(k * size, size), log / name)
    for number in range(6):
        _entry(log, number).unlink()
    assert _plain(_state(log)) == _plain(expected)
    with pytest.raises(FileNotFoundError, match=re.escape(f"{0:020d}.json")):
        _state(log, 4)
    if parts > 1:
        # One that was not finished does not count.
        next(log.glob("*.parquet")).unlink()
        with pytest.raises(FileNotFoundError, match=re.escape(f"{0:020d}.json")):
            _state(log)


def test_statistics_that_are_not_json(tmp_path: Path) -> None:
    """A checkpoint may have them in columns alone. A file with a vector needs the count of its rows."""
    table = numbered.load(delta_table(tmp_path, "t", file_bytes=100, merge="on_read"))
    state = _state(tmp_path / "t" / "_delta_log", 0)
    path, add = next(iter(state.adds.items()))
    bare = LogState(0, {path: {name: value for name, value in add.items() if name != "stats"}})
    vector = _marked_vector(table, tmp_path)
    assert parsed_json(bare.marked(path, vector, 100)["add"]["stats"]) == {
        "numRecords": 100,
        "tightBounds": False,
    }
    known = parsed_json(add["stats"])
    assert parsed_json(state.marked(path, vector, 100)["add"]["stats"]) == {**known, "tightBounds": False}


def _marked_vector(table: Any, place: Path) -> Any:
    table.apply(numbered.effect([5]), 2)
    (vector,) = _state(place / "t" / "_delta_log", 1).vectors.values()
    return vector


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_checkpoints_with_sidecars(form: str, log: Path) -> None:
    """They have the same, and delta-rs reads them, too. A table keeps the feature."""
    place, before = log.parent, _state(log)
    number = move_to_sidecars(place, form)
    state = _state(log, number)
    assert (_plain(state)[1:3], len(state.adds) > 10) == (_plain(before)[1:3], True)
    wanted = sorted(read_with_delta_rs(place)["id"].to_pylist())
    table = delta_table(place.parent, "t", file_bytes=100, merge="on_read")
    assert numbered.ids(table) == wanted
    for position in range(20, 31):
        table.apply(numbered.effect([position], [3000 + position]), position)
    wanted = sorted({*wanted, *range(3020, 3031)} - {*range(20, 31)})
    assert sorted(log.glob("*.checkpoint.parquet"))  # delta-rs wrote the next one
    for opened in (table, delta_table(place.parent, "t")):
        assert numbered.ids(opened) == sorted(read_with_delta_rs(place)["id"].to_pylist()) == wanted
    assert "v2Checkpoint" in deltalake.DeltaTable(place).protocol().writer_features
    (sidecar, *_) = log.glob("_sidecars/*")
    sidecar.unlink()
    with pytest.raises(FileNotFoundError, match=sidecar.name):
        _state(log, number)
    if form == "json":
        (checkpoint,) = log.glob("*.checkpoint.*.json")
        checkpoint.write_text("{")
        with pytest.raises(ValueError, match=checkpoint.name):
            _state(log, number)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[: len(text) // 2], "Unterminated|Expecting|delimiter"),
        (lambda text: '{"add": 7}\n', "subscriptable|indices"),
        (lambda text: '{"remove": {"size": 7}}\n', "path"),
        (lambda text: "[]\n", "attribute"),
        (lambda text: text.replace('"storageType"', '"storage"'), "in an unknown form"),
        (lambda text: "[" * 100_000, "nested too deeply"),
    ],
    ids=["cut", "no action", "no path", "no object", "no vector", "deep"],
)
def test_a_damaged_entry(damage: Any, says: str, log: Path) -> None:
    path = _entry(log, 3)
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=rf"{re.escape(path.name)} is damaged: .*({says})"):
        _state(log)
    assert _state(log, 2).number == 2


def test_an_entry_is_written_once(log: Path) -> None:
    store, actions = open_store(log.parent.parent), [{"txn": {"appId": "x", "version": 1}}]
    assert not has_entry(store, "t", 8)
    content = entry(actions, {"pgoutput_fast.mirror": 9}, {"more": "known"})
    assert content != entry(actions, {"pgoutput_fast.mirror": 9}, {"more": "known"})
    write_entry(store, "t", 8, content, str(log.parent), None)
    assert has_entry(store, "t", 8)
    table = deltalake.DeltaTable(log.parent)
    assert (table.transaction_version("pgoutput_fast.mirror"), table.transaction_version("x")) == (9, 1)
    assert table.history(1)[0]["more"] == "known"
    with pytest.raises(FileExistsError):
        write_entry(store, "t", 8, entry([], {"pgoutput_fast.mirror": 10}), str(log.parent), None)
    assert len(_entry(log, 8).read_text().splitlines()) == 3


def test_a_file_that_appears_once_in_a_store() -> None:
    with opened_bucket("once") as bucket:
        uri, options = uri_and_options(bucket.uri % "lake/t")
        options |= {"AWS_S3_LOCKING_PROVIDER": "dynamodb", "timeout": "30s", "conditional_put": "etag"}
        put_new(uri, options, "_delta_log/1.json", b"one")
        with pytest.raises(FileExistsError, match=r"^s3://once/lake/t/_delta_log/1\.json$"):
            put_new(uri, options, "_delta_log/1.json", b"two")
        assert open_store(bucket.uri % "lake").read("t/_delta_log/1.json") == b"one"
        bucket.refuse("2.json")
        with pytest.raises(OSError, match=r"_delta_log/2\.json cannot be written: .*PUT") as caught:
            put_new(uri, options, "_delta_log/2.json", b"two")
        assert "secret" not in str(caught.value)


def test_without_obstore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ImportError, match=r"in an object store needs obstore: pip install 'obstore>=0\.5'"):
        put_new("s3://once/lake", {}, "x", b"")


def test_protocols(log: Path) -> None:
    """A table keeps what it demands."""
    old = _state(log, 0)
    assert (old.protocol["minReaderVersion"], old.protocol["minWriterVersion"]) == (1, 2)
    protocol, metadata = old.enabled()
    assert protocol["protocol"] == {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["appendOnly", "deletionVectors", "invariants"],
    }
    assert metadata["metaData"]["configuration"]["delta.enableDeletionVectors"] == "true"
    assert {**metadata["metaData"], "configuration": old.metadata["configuration"]} == old.metadata
    assert _state(log).enabled() == []
    named = {
        "readerFeatures": ["timestampNtz"],
        "writerFeatures": ["timestampNtz"],
        "minReaderVersion": 3,
        "minWriterVersion": 7,
    }
    (protocol, _) = LogState(0, metadata=old.metadata, protocol=named).enabled()
    assert protocol["protocol"]["readerFeatures"] == ["deletionVectors", "timestampNtz"]
    assert protocol["protocol"]["writerFeatures"] == ["deletionVectors", "timestampNtz"]
    (protocol, _) = LogState(0, metadata=old.metadata, protocol={"minWriterVersion": 4}).enabled()
    others = ["appendOnly", "changeDataFeed", "checkConstraints", "generatedColumns", "invariants"]
    assert set(protocol["protocol"]["writerFeatures"]) == {"deletionVectors", *others}
    with pytest.raises(ValueError, match="writers need version 5"):
        LogState(0, protocol={"minWriterVersion": 5}).check_writable()
    generated = {"schemaString": '{"fields": [{"metadata": {"delta.generationExpression": "id + 1"}}]}'}
    with pytest.raises(ValueError, match="it has generated columns"):
        LogState(0, metadata=generated, protocol={"minWriterVersion": 4}).check_writable()


@pytest.mark.parametrize(("interval", "expected"), [(None, 10), ("3", 3), ("0", 10), ("x", 10), ("-1", 10)])
def test_checkpoint_intervals(interval: str | None, expected: int) -> None:
    properties = {} if interval is None else {"delta.checkpointInterval": interval}
    assert LogState(0, metadata={"configuration": properties}).checkpoint_interval == expected
