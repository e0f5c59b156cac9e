"""Captured messages of each protocol version: whole, cut short anywhere, and with any byte changed."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import pgoutput_fast as pgo
from support.fixtures import FILES, read
from support.forms import and_slow
from support.oracle import equal_rows, in_apply_order, plain_changes, same_as_reference_in_both_views

SEED = os.environ.get("PGOUTPUT_FAST_SEED", "20260404")
CHANGES_PER_FILE = 120

every_fixture = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def test_fixtures_hold_every_kind_of_message_and_are_small() -> None:
    tags = {chr(data[0]) for path in FILES for _, data in read(path)}
    assert tags == set("BCORYIUDTMSEcAbPKrp")
    assert sum(path.stat().st_size for path in FILES) < 200_000


@every_fixture
def test_captured_messages_decode_as_the_reference_decodes_them(path: Path) -> None:
    same_as_reference_in_both_views(read(path))


@pytest.mark.parametrize(
    "path", and_slow(FILES[1::3], [*FILES[::3], *FILES[2::3]]), ids=lambda path: path.stem
)
def test_every_truncation_is_an_error_that_names_the_place(path: Path) -> None:
    """And leaves the decoder as it was: it goes on with the whole message."""
    payloads = read(path)
    decoder = pgo.Decoder()
    rows = []
    for seq, (lsn, data) in enumerate(payloads):
        for length in range(len(data)):
            if data[:1] == b"A" and length == 9:
                continue  # without a position it is an abort of an ordinary stream
            with pytest.raises(pgo.DecodeError) as caught:
                decoder.decode([data[:length]], lsn=[lsn])
            error = caught.value
            assert (error.seq, error.lsn) == (seq, lsn or None)
            assert error.byte_offset is not None
            assert 0 <= error.byte_offset <= length
        rows += plain_changes([decoder.decode([data], lsn=[lsn])])
    whole = pgo.decode([data for _, data in payloads], lsn=[lsn for lsn, _ in payloads])
    equal_rows(in_apply_order(rows), in_apply_order(plain_changes([whole])), "changes")


@every_fixture
def test_message_with_bytes_left_over_is_an_error_that_names_the_place(path: Path) -> None:
    decoder = pgo.Decoder()
    for seq, (lsn, data) in enumerate(read(path)):
        if data[:1] != b"A" or len(data) > 9:
            with pytest.raises(pgo.DecodeError) as caught:
                decoder.decode([data + b"\0"], lsn=[lsn])
            assert caught.value.seq == seq
            assert caught.value.byte_offset == len(data)
        decoder.decode([data], lsn=[lsn])


@pytest.mark.parametrize(
    "path", and_slow(FILES[::3], [*FILES[1::3], *FILES[2::3]]), ids=lambda path: path.stem
)
def test_every_changed_byte_raises_or_decodes(path: Path) -> None:
    """Never anything else; set aside, the message that cannot be decoded does not stop the stream."""
    print(f"seed {SEED} (PGOUTPUT_FAST_SEED)")
    rng = random.Random(f"{SEED} {path.stem}")
    payloads = [data for _, data in read(path)]
    places = [(seq, at) for seq, data in enumerate(payloads) for at in range(len(data))]
    raised = 0
    for seq, at in rng.sample(places, min(CHANGES_PER_FILE, len(places))):
        data = bytearray(payloads[seq])
        data[at] ^= rng.randrange(1, 256)
        changed = [*payloads[:seq], bytes(data), *payloads[seq + 1 :]]
        for view in ("as_sent", "committed"):
            error = failure(changed, view)
            raised += error is not None
            # What was changed may only be found out later, by what does not fit to it, but never before.
            assert error is None or (error.seq is not None and error.seq >= seq)
            read_all(pgo.decode(changed, options=pgo.Options(on_error="quarantine", transactions=view)))
    assert raised > CHANGES_PER_FILE // 10


def failure(payloads: list[bytes], view: str) -> pgo.DecodeError | None:
    try:
        read_all(pgo.decode(payloads, options=pgo.Options(transactions=view)))
    except pgo.DecodeError as error:
        return error
    return None


def read_all(out: pgo.Decoded) -> None:
    for each in out.changes:
        each.batch.validate(full=True)
    for table in (out.transactions, out.outcomes, out.truncates, out.messages, out.rejects):
        table.validate(full=True)
