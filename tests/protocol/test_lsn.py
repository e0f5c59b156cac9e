"""LSNs as text, ints and Decimals, wherever one is taken."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast.capture import Capture
from pgoutput_fast.segments import Source, list_segments, open_segment, write_segment
from support import pg

LSN = 0x1B0D988
SAME: list[Any] = [
    LSN,
    "0/1B0D988",
    "0/1b0d988",
    "00000000/01B0D988",
    Decimal(LSN),
    Decimal(f"{LSN}.000"),
    np.int64(LSN),
]


@pytest.mark.parametrize("lsn", SAME, ids=repr)
def test_the_forms_of_an_lsn(lsn: Any) -> None:
    assert pgo.parse_lsn(lsn) == LSN
    assert type(pgo.parse_lsn(lsn)) is int
    assert pgo.format_lsn(lsn) == "0/1B0D988"


def test_there_and_back() -> None:
    rng = random.Random(7)
    for lsn in [
        0,
        1,
        (1 << 32) - 1,
        1 << 32,
        (1 << 63) - 1,
        (1 << 64) - 1,
        *(rng.getrandbits(64) for _ in range(500)),
    ]:
        assert pgo.parse_lsn(pgo.format_lsn(lsn)) == lsn


WRONG_TEXT = [
    "", "/", "0", "1B0D988", "0/", "/1", "0/1/2", "0/G", "0x0/1", "-0/1", "+0/1", "0/-1", " 0/1", "0/1 ", "0/1\n", "100000000/0", "0/100000000", "0/1_0",
    "\u0660/\u0661", "now", "28367240",
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG_TEXT)
def test_text_that_is_no_lsn(text: str) -> None:
    for take in (pgo.parse_lsn, pgo.format_lsn):
        with pytest.raises(ValueError, match="'16/B374D848'"):
            take(text)


@pytest.mark.parametrize(
    "number",
    [-1, 1 << 64, Decimal(-1), Decimal("0.5"), Decimal("NaN"), Decimal("Infinity"), Decimal(1 << 64)],
)
def test_numbers_that_are_no_lsn(number: Any) -> None:
    for take in (pgo.parse_lsn, pgo.format_lsn):
        with pytest.raises(ValueError, match="whole number"):
            take(number)


@pytest.mark.parametrize("value", [1.0, float("nan"), None, True, b"0/1", [1], np.float64(1)])
def test_other_types_are_refused(value: Any) -> None:
    for take in (pgo.parse_lsn, pgo.format_lsn):
        with pytest.raises(TypeError, match="int, a Decimal or text"):
            take(value)


def test_a_server_says_the_same(database: pg.Database) -> None:
    texts = ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF", "ff/a"]
    for text in texts:
        ((shown, number),) = database.execute(
            f"SELECT '{text}'::pg_lsn::text, '{text}'::pg_lsn - '0/0'::pg_lsn"
        )
        assert isinstance(number, Decimal)
        assert pgo.parse_lsn(text) == pgo.parse_lsn(shown) == int(number)
        assert pgo.format_lsn(number) == pgo.format_lsn(shown)
        if database.version < 19:  # later servers fill the digits after the slash up with zeros
            assert pgo.format_lsn(number) == shown


# --- decode and tag -----------------------------------------------------------------------------------------

WAL = [encode.encode_begin(100, 0, 7), encode.encode_message(5, "p", b""), encode.encode_commit(100, 108, 0)]
TEXTS = ["0/5", None, "1/0"]
NUMBERS = [5, None, 1 << 32]


@pytest.mark.parametrize(
    "lsns",
    [
        TEXTS, tuple(TEXTS), iter(TEXTS), [Decimal(5), None, Decimal(1 << 32)], [5, None, "1/0"], [Decimal(5), None, 1 << 32],
        pa.array(TEXTS), pa.array(TEXTS, pa.large_string()), pa.chunked_array([TEXTS[:1], TEXTS[1:]]), pa.array(NUMBERS, pa.decimal128(20, 0)),
        np.array(TEXTS, object), NUMBERS, pa.array(NUMBERS, pa.uint64()),
    ],
    ids=lambda lsns: type(lsns).__name__,
)  # fmt: skip
def test_lsns_of_payloads(lsns: Any) -> None:
    batch, _ = pgo.tag(WAL, lsn=lsns)
    assert batch.column("lsn").to_pylist() == NUMBERS


def test_lsns_of_a_stream_of_batches() -> None:
    (out,) = pgo.Decoder().stream([pa.table({"payload": pa.array(WAL, pa.binary()), "lsn": TEXTS})])
    assert out.messages.num_rows == 1


@pytest.mark.parametrize(
    ("lsns", "error", "said"),
    [
        (["0/5", "0-6", "0/7"], ValueError, r"lsn\[1\]: .*not '0-6'"),
        (["0/5", Decimal("0.5"), "0/7"], ValueError, r"lsn\[1\]: .*whole number"),
        (["0/5", 1.0, "0/7"], TypeError, r"lsn\[1\]: .*not a float"),
        (["0/5", "FFFFFFFF/0", "0/7"], ValueError, "lsn must fit int64"),
        (["0/5", "0/6"], ValueError, "3 payloads, 2 values"),
        ([1.0, 2.0, 3.0], TypeError, "lsn must be integers"),
        ("0/5", TypeError, "a value per payload"),
    ],
)
def test_lsns_that_are_none(lsns: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        pgo.decode(WAL, lsn=lsns)


# --- encode, segments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lsn", SAME, ids=repr)
def test_lsns_that_are_written(lsn: Any, tmp_path: Path) -> None:
    assert encode.encode_commit(lsn, lsn, 0) == encode.encode_commit(LSN, LSN, 0)
    assert encode.Writer().begin(7, lsn, 0) == encode.Writer().begin(7, LSN, 0)
    tagged, state = pgo.tag(WAL)
    segment = open_segment(
        write_segment(tmp_path, tagged, state, source=Source("1", "d", "s"), start_lsn=lsn, end_lsn=lsn)
    )
    assert (segment.start_lsn, segment.end_lsn) == (LSN, LSN)


@pytest.mark.parametrize("lsn", ["0", -1, 1.0, "now"])
def test_lsns_that_are_not_written(lsn: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="commit_lsn"):
        encode.encode_commit(lsn, 1, 0)
    tagged, state = pgo.tag(WAL)
    with pytest.raises((ValueError, TypeError), match="an LSN"):
        write_segment(tmp_path, tagged, state, source=Source("1", "d", "s"), end_lsn=lsn)
    assert list(tmp_path.iterdir()) == []


# --- capture ------------------------------------------------------------------------------------------------


def test_until_where_a_capture_goes(database: pg.Database, tmp_path: Path) -> None:
    """As text, as the Decimal that the server gives, and up to now."""
    database.execute(
        "CREATE TABLE until_t (id int PRIMARY KEY)", "CREATE PUBLICATION until_p FOR TABLE until_t"
    )
    name = f"{database.name}_until"
    capture = Capture(database.dsn, name, ["until_p"], tmp_path)
    try:
        capture.run(until_lsn="now")
        for number, form in enumerate(["lsn::text", "lsn - '0/0'", None]):
            database.execute(f"INSERT INTO until_t VALUES ({number})")
            ((until,),) = database.execute(f"SELECT {form or 1} FROM (SELECT pg_current_wal_lsn() AS lsn) x")
            capture.run(until_lsn="now" if form is None else until)
            assert len(list_segments(tmp_path)) == number + 1
        for wrong in ("then", "0", -1):
            with pytest.raises(ValueError, match="an LSN"):
                capture.run(until_lsn=wrong)
        with pytest.raises(TypeError, match="an LSN"):
            capture.run(until_lsn=1.0)  # type: ignore[arg-type]
    finally:
        database.execute(f"SELECT pg_drop_replication_slot('{name}')")


@pytest.mark.unsanitized
def test_until_of_the_command_is_refused_as_elsewhere() -> None:
    arguments = ["--slot", "s", "--publication", "p", "--path", "d", "--until", "100000000/0"]
    run = subprocess.run(
        [sys.executable, "-m", "pgoutput_fast", "capture", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr.strip().endswith(
        "--until: an LSN as text is like '16/B374D848' (hex digits/hex digits), not '100000000/0'; or give 'now'"
    )


def test_errors_show_positions_as_servers_do() -> None:
    with pytest.raises(pgo.DecodeError, match="LSN 16/B374D848") as caught:
        pgo.decode([b"B"], lsn=["16/B374D848"])
    assert pickle.loads(pickle.dumps(caught.value)).lsn == 0x16B374D848
