"""Stores of files: a directory here. `tests/capture/test_store.py` has one that speaks S3."""

from __future__ import annotations

import itertools
import json
import os
import threading
from pathlib import Path

import pytest

from pgoutput_fast.storage.paths import absolute, find_files
from pgoutput_fast.storage.stores import Store, open_store
from support.buckets import opened_bucket


@pytest.fixture(params=["path", "uri"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    directory = tmp_path / "a b"
    return open_store(directory if request.param == "path" else f"file://{tmp_path}/a%20b")


def test_files_appear_whole_and_are_replaced(store: Store, tmp_path: Path) -> None:
    assert store.entries() == []
    store.make()
    store.make()
    with store.write("deep/er/x.json") as file:
        file.write(b"first")
        assert [each.name for each in store.entries(recursive=True) if not each.hidden] == []
    (entry,) = store.entries("deep", recursive=True)
    assert (entry.name, entry.nbytes, entry.hidden) == ("deep/er/x.json", 5, False)
    assert abs(entry.modified - os.stat(tmp_path / "a b" / entry.name).st_mtime) < 1
    with pytest.raises(FileExistsError, match=r"x\.json exists"), store.write("deep/er/x.json"):
        pass
    store.put("deep/er/x.json", b"second")
    assert store.read("deep/er/x.json") == b"second"
    assert store.at("deep/er/x.json") == tmp_path / "a b" / "deep" / "er" / "x.json"
    assert store.entries() == []
    assert store.remove("deep/er/x.json")
    assert not store.remove("deep/er/x.json")
    with pytest.raises(FileNotFoundError):
        store.read("deep/er/x.json")


def test_what_fails_leaves_nothing(store: Store) -> None:
    def fail() -> None:
        with store.write("x") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert store.entries() == []
    store.put("x", b"whole")
    with pytest.raises(NotADirectoryError), store.write("x/y"):
        pass
    assert store.entries("x") == []
    assert store.read("x") == b"whole"


def test_hidden_entries(store: Store) -> None:
    for name in ("_consumers/a.json", ".lock", "lake/_rejects/1.parquet", "lake/t/1.parquet"):
        store.put(name, b"")
    assert [each.name for each in store.entries(recursive=True) if not each.hidden] == ["lake/t/1.parquet"]


def test_a_uri_that_became_a_path() -> None:
    with pytest.raises(ValueError, match="was a URI"):
        open_store(Path("s3://bucket/prefix"))


def test_places_that_are_no_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place, message in (
        ("", r"an empty text is no path or URI"),
        ("s3:/b/x", r"has a single slash after s3: did you mean 's3://b/x'\? .* write '\./s3:/b/x'"),
        ("hdfs:/x", r"did you mean 'hdfs:///x'\?"),
        ("dbfs:/lake", r"no URI of a store that pyarrow knows \(s3, .*give its path, such as '/dbfs/lake'"),
        ("foo://bucket/x", r"cannot open foo://bucket/x"),
    ):
        for use in (open_store, find_files):
            with pytest.raises(ValueError, match=message):
                use(place)
    assert not list(tmp_path.iterdir())
    for place in ("./a:b", "a:b", "./s3:/b", str(tmp_path / "a:b"), "C:/x", "C:\\x"):
        store = open_store(place)
        assert store.local
        assert str(store) == str(Path(place))
    for place in (f"file:{tmp_path}/a b", f"file://{tmp_path}/a%20b"):
        open_store(place).put("t.parquet", b"x")
        assert (tmp_path / place.rpartition("/")[2].replace("%20", " ") / "t.parquet").read_bytes() == b"x"
        assert [file.nbytes for file in find_files(place)] == [1]
        assert absolute(place) == place


def _rename_without_replacing(store: Store) -> None:
    store.put("a", b"1")
    store.put("b", b"2")
    with pytest.raises(FileExistsError, match="b exists"):
        store.rename("a", "b", replace=False)
    assert (store.read("a"), store.read("b")) == (b"1", b"2")
    store.rename("a", "c", replace=False)
    store.rename("c", "b")
    assert (store.names(), store.read("b")) == (["b"], b"1")
    with pytest.raises(FileNotFoundError):
        store.rename("a", "d", replace=False)


def test_a_rename_that_replaces_nothing(store: Store) -> None:
    _rename_without_replacing(store)


@pytest.mark.slow
def test_a_rename_in_a_store_that_replaces_nothing() -> None:
    with opened_bucket("renamed") as bucket:
        _rename_without_replacing(open_store(bucket.uri % "files"))


@pytest.mark.slow
def test_a_file_of_a_store_that_is_replaced_while_it_is_read() -> None:
    """A reader gets the whole file, as it was or as it is."""
    with opened_bucket("replaced") as bucket:
        store = open_store(bucket.uri % "files")
        store.put("growing", b"[0]")
        done, lengths = threading.Event(), [1]

        def replace() -> None:
            for length in itertools.count(2):
                store.put("growing", json.dumps([0] * length).encode())
                if length > 80 and len(set(lengths)) > 3:
                    done.set()
                    return

        writer = threading.Thread(target=replace)
        writer.start()
        while not done.is_set():
            lengths.append(len(json.loads(store.read("growing"))))
        writer.join()
        assert lengths == sorted(lengths)
        assert len(set(lengths)) > 2


def test_only_files_count(tmp_path: Path) -> None:
    """To open a pipe would wait forever."""
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "nowhere").symlink_to("gone")
    os.mkfifo(tmp_path / "pipe")
    store = open_store(tmp_path)
    assert [each.name for each in store.entries()] == ["file", "link"]
    assert sorted(store.names()) == ["file", "link", "nowhere"]
    os.rename(tmp_path / "pipe", tmp_path / "pipe.parquet")
    for place in (tmp_path, tmp_path / "pipe.parquet"):
        with pytest.raises(ValueError, match=r"pipe\.parquet is no file: it is a pipe"):
            find_files(place)
