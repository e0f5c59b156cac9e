"""Deletion vectors as bytes: those that this package and others write, and damaged ones."""

from __future__ import annotations

import base64
import random
import re
import tempfile
import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.delta import vectors
from pgoutput_fast.tables.delta.vectors import VECTORS, Vector, with_rows, write_vectors
from support.buckets import opened_bucket

# Files that Delta 2.4 and 3.2 for Spark wrote, for tests of Delta and delta-rs, and what their logs say of them.
OF_SPARK = [
    (
        "deletion_vector_899cef78-06b3-4c14-b024-03860e62cd40.bin",
        "0100000024d1d339640100000000000000000000003a30000001000000000001001000000000000100e2be924e",
        [("IjB3V2d3#qUP%s94R0WF", 1, 36, [0, 1])],
    ),
    (
        "deletion_vector_7f94a4d4-4d29-440e-b1c0-387e410aeded.bin",
        "0100000022d1d339640100000000000000000000003a3000000100000000000000100000000000f7a6b4b5"
        "00000022d1d339640100000000000000000000003a3000000100000000000000100000000100eebd85f4",
        [("F0u+Uo^@EuVa@tFk))2D", 1, 34, [0]), ("F0u+Uo^@EuVa@tFk))2D", 43, 34, [1])],
    ),
]


def _positions(place: Path, vector: Vector, rows: int = 1 << 40) -> list[int]:
    return vector.positions(open_store(place), "t", rows).tolist()


@pytest.mark.parametrize(("name", "content", "known"), OF_SPARK, ids=["one", "two in a file"])
def test_vectors_of_spark(
    name: str, content: str, known: list[tuple[str, int, int, list[int]]], tmp_path: Path
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / name).write_bytes(bytes.fromhex(content))
    for place, offset, nbytes, positions in known:
        logged = {
            "storageType": "u",
            "pathOrInlineDv": place,
            "offset": offset,
            "sizeInBytes": nbytes,
            "cardinality": len(positions),
        }
        vector = Vector.from_json(logged)
        assert vector.to_json() == logged
        assert vector.file == name
        assert _positions(tmp_path, vector) == positions
        elsewhere = replace(vector, storage="p", place=(tmp_path / "t" / name).as_uri())
        assert (elsewhere.file, _positions(tmp_path, elsewhere)) == (None, positions)


def test_the_name_of_a_file_with_a_prefix() -> None:
    """The example of Delta's protocol."""
    vector = Vector("u", "ab^-aqEH.-t@S}K{vb[*k^", 4, 40, 6)
    assert vector.file == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def test_a_vector_in_the_log(tmp_path: Path) -> None:
    """Its Z85 is that of ZeroMQ's specification, and may have up to three more bytes than the vector."""
    data = base64.b85decode(base64.b85encode(bytes.fromhex("864fd26fb559f75b")))
    assert vectors._encoded(data) == "HelloWorld"
    stored = bytes.fromhex(OF_SPARK[1][1])[5:39]
    vector = Vector("i", vectors._encoded(stored + b"\0\0"), None, len(stored), 1)
    assert _positions(tmp_path, Vector.from_json(vector.to_json())) == [0]
    with pytest.raises(ValueError, match="in the log is damaged: its size is wrong"):
        _positions(tmp_path, replace(vector, nbytes=20))
    # The example of the protocol has an older form, which no reader has to know.
    old = Vector("i", "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", None, 40, 6)
    with pytest.raises(ValueError, match="does not have the portable form"):
        _positions(tmp_path, old)


_ROWS = st.lists(st.integers(0, 1 << 34), max_size=50, unique=True).map(sorted)


@settings(max_examples=30, deadline=None)
@given(st.lists(_ROWS, min_size=1, max_size=4))
def test_written_vectors_are_read(sets: list[list[int]]) -> None:

    with tempfile.TemporaryDirectory() as place:
        rows = {str(k): with_rows(np.array(each, np.int64)) for k, each in enumerate(sets)}
        written = write_vectors(open_store(place), "t", rows)
        (file,) = Path(place, "t", "_vectors").iterdir()
        assert VECTORS.fullmatch(file.name)
        for k, each in enumerate(sets):
            vector = Vector.from_json(written[str(k)].to_json())
            assert (vector.file, vector.count) == (f"_vectors/{file.name}", len(each))
            assert _positions(Path(place), vector) == each


def test_runs_of_rows_take_little_room(tmp_path: Path) -> None:
    write_vectors(open_store(tmp_path), "t", {"a": with_rows(np.arange(1_000_000))})
    (file,) = (tmp_path / "t" / "_vectors").iterdir()
    assert file.stat().st_size < 500


def test_vectors_in_a_store() -> None:
    with opened_bucket("vectors") as bucket:
        store = open_store(bucket.uri % "lake")
        vector = write_vectors(store, "t", {"a": with_rows(np.array([5]), with_rows(np.array([3])))})["a"]
        assert vector.positions(store, "t", 6).tolist() == [3, 5]
        with pytest.raises(FileNotFoundError, match="deletion_vector_"):
            replace(vector, place=vectors._encoded(uuid.uuid4().bytes)).positions(store, "t", 6)


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Vector]:
    rows = {"a": with_rows(np.array([1, 5, 700_000])), "b": with_rows(np.array([2, 3, 9]))}
    vector = write_vectors(open_store(tmp_path), "t", rows)["b"]
    (file,) = (tmp_path / "t" / "_vectors").iterdir()
    return file, vector


def test_a_missing_vector(written: tuple[Path, Vector], tmp_path: Path) -> None:
    file, vector = written
    file.unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(file.name)):
        _positions(tmp_path, vector)


def test_a_cut_vector(written: tuple[Path, Vector], tmp_path: Path) -> None:
    """At any byte."""
    file, vector = written
    content = file.read_bytes()
    assert vector.offset is not None
    assert len(content) == vector.offset + 4 + vector.nbytes + 4
    for end in range(len(content)):
        file.write_bytes(content[:end])
        with pytest.raises(ValueError, match=re.escape(file.name)):
            _positions(tmp_path, vector)


def test_a_vector_with_one_wrong_byte(written: tuple[Path, Vector], tmp_path: Path) -> None:
    file, vector = written
    content = file.read_bytes()
    assert vector.offset is not None
    for at in (0, *range(vector.offset, len(content))):
        wrong = bytearray(content)
        wrong[at] ^= 1 << at % 8
        file.write_bytes(wrong)
        with pytest.raises(ValueError, match=f"a deletion vector in .*{re.escape(file.name)} is damaged"):
            _positions(tmp_path, vector)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"count": 4}, "it marks 3 rows, but the log says 4"),
        ({"nbytes": 39}, "its size is wrong"),
        ({"nbytes": 1 << 40}, "are too many"),
        ({"offset": 1}, "its size is wrong"),
        ({"offset": 1 << 40}, "its size is wrong"),
    ],
    ids=str,
)
def test_a_log_that_says_something_else(
    wrong: dict[str, int], message: str, written: tuple[Path, Vector], tmp_path: Path
) -> None:
    file, vector = written
    with pytest.raises(ValueError, match=f"{re.escape(file.name)} is damaged: .*{message}"):
        _positions(tmp_path, replace(vector, **wrong))


def test_more_rows_than_the_file(written: tuple[Path, Vector], tmp_path: Path) -> None:
    _, vector = written
    assert _positions(tmp_path, vector, 10) == [2, 3, 9]
    with pytest.raises(ValueError, match="it marks row 9 of a file with 9 rows"):
        _positions(tmp_path, vector, 9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"storageType": "x"},
        {"sizeInBytes": -1},
        {"sizeInBytes": 1.0},
        {"cardinality": None},
        {"offset": -1},
        {"pathOrInlineDv": 7},
    ],
    ids=str,
)
def test_a_descriptor_in_an_unknown_form(wrong: dict[str, object]) -> None:
    known = {"storageType": "u", "pathOrInlineDv": "a" * 20, "offset": 1, "sizeInBytes": 34, "cardinality": 1}
    Vector.from_json(known)
    with pytest.raises(ValueError, match="in an unknown form"):
        Vector.from_json(known | wrong)
    with pytest.raises(ValueError, match="in an unknown form"):
        Vector.from_json(
            {name: value for name, value in known.items() if name not in wrong or name == "offset"}
            | {"sizeInBytes": None}
        )


def test_names_that_are_no_uuid(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no UUID"):
        _positions(tmp_path, Vector("u", "short", 1, 34, 1))
    with pytest.raises(ValueError, match="not Z85"):
        _positions(tmp_path, Vector("u", "~" * 20, 1, 34, 1))


def test_random_bitmaps_are_errors_or_as_counted(tmp_path: Path) -> None:
    """Inline vectors have no checksum."""
    dice, stored = random.Random(5), bytes.fromhex(OF_SPARK[0][1])[5:41]
    errors = 0
    for _ in range(2000):
        data = bytearray(stored)
        data[dice.randrange(4, len(data))] = dice.randrange(256)
        vector = Vector("i", vectors._encoded(bytes(data)), None, len(data), 2)
        try:
            positions = _positions(tmp_path, vector, 1000)
        except ValueError:
            errors += 1
        else:
            assert len(positions) == 2
            assert max(positions) < 1000
    assert 0 < errors < 2000
