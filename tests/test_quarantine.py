"""Whatever message is damaged: what is still decoded is what the sound stream gives, nothing else.

No reference decoder is needed to see that.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import pg
import pgoutput_fast as pgo
from oracle import Row, plain_changes
from pgoutput_fast.encode import (
    ColumnSpec,
    RelationSpec,
    encode_begin,
    encode_commit,
    encode_message,
    encode_relation,
    encode_truncate,
)
from test_fixtures import FILES, read

SEED = os.environ.get("PGOUTPUT_FAST_SEED", "20260405")
DAMAGES_PER_FILE = 150


COLUMNS = (ColumnSpec("id", 23),)


def rows_by_seq(
    payloads: list[pg.Payload], view: str, on_error: str
) -> tuple[dict[int, list[Row]], set[int]]:
    """({seq: its rows}, seqs of messages that were set aside)."""
    options = pgo.Options(on_error=on_error, transactions=view)
    out = pgo.decode([data for _, data in payloads], lsn=[lsn for lsn, _ in payloads], options=options)
    rows: dict[int, list[Row]] = {}
    for row in sorted(plain_changes([out]), key=lambda row: row["relation"]):  # a truncate has several
        rows.setdefault(row["_seq"], []).append(row)
    rejects = out.rejects.to_pylist()
    return rows, {row["seq"] for row in rejects if row["format"] is None}


def damaged(rng: random.Random, data: bytes) -> bytes:
    """So that it is noticed: cut short, lengthened, or of no known kind."""
    way = rng.randrange(3)
    if way == 0:
        return data[: rng.randrange(len(data))]
    return data + b"\0" if way == 1 else b"?" + data[1:]


@pytest.mark.parametrize("view", ["as_sent", "committed"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_decoded_beside_a_damaged_message_is_right(path: Path, view: str) -> None:
    print(f"seed {SEED} (PGOUTPUT_FAST_SEED)")
    rng = random.Random(f"{SEED} {path.stem} {view}")
    payloads = read(path)
    sound, _ = rows_by_seq(payloads, view, "raise")
    changes = {seq for seq, (_, data) in enumerate(payloads) if data[:1] in (b"I", b"U", b"D", b"T")}
    for _ in range(DAMAGES_PER_FILE):
        at = rng.randrange(len(payloads))
        lsn, data = payloads[at]
        found, aside = rows_by_seq(
            [*payloads[:at], (lsn, damaged(rng, data)), *payloads[at + 1 :]], view, "quarantine"
        )
        if at not in aside:
            continue  # an abort without its position is an abort
        for seq, rows in found.items():
            # Of a Truncate the rows of those relations that are not lost.
            some = (
                payloads[seq][1][:1] == b"T" and seq in aside and rows == [r for r in sound[seq] if r in rows]
            )
            assert some or rows == sound.get(seq), (at, data, seq)
        if view == "as_sent":
            # And what is not decoded was set aside, with its bytes.
            assert changes - set(found) <= aside, (at, data)


@pytest.mark.parametrize(
    "path", [path for path in FILES if "streaming_binary" in path.stem], ids=lambda path: path.stem
)
def test_what_a_damaged_abort_may_have_taken_back_is_not_given(path: Path) -> None:
    payloads = read(path)
    sound, _ = rows_by_seq(payloads, "committed", "raise")
    aborts = [at for at, (_, data) in enumerate(payloads) if data[:1] == b"A"]
    assert aborts
    for at in aborts:
        lsn, data = payloads[at]
        for bad in (data[:-1], b"?" + data[1:], b""):
            found, aside = rows_by_seq(
                [*payloads[:at], (lsn, bad), *payloads[at + 1 :]], "committed", "quarantine"
            )
            assert set(found) <= set(sound)
            assert set(sound) - set(found) <= aside


def test_a_truncate_empties_the_relations_that_are_known() -> None:
    good, lost = (RelationSpec(oid, "public", name, COLUMNS) for oid, name in ((1, "good"), (2, "lost")))
    wal = [encode_begin(100, 0, 7), encode_relation(good), encode_relation(lost)]
    wal += [
        encode_relation(lost)[:-1],
        encode_truncate([1, 2, 3], cascade=True),
        encode_truncate([2]),
        encode_commit(100, 108, 0),
    ]
    for view in ("as_sent", "committed"):
        out = pgo.decode(wal, options=pgo.Options(on_error="quarantine", transactions=view))
        assert [
            (str(each.relation.name), each.batch.column("_change_type").to_pylist()) for each in out.changes
        ] == [("good", ["truncate"])]
        assert out.truncates.to_pylist() == [
            {"seq": 4, "txn": 0, "relations": [1, 2, 3], "cascade": True, "restart_identity": False}
        ]
        # Under its name where that is known: 3 was never described.
        assert [(row["seq"], row["relation"], row["byte_offset"]) for row in out.rejects.to_pylist()] == [
            (3, None, len(encode_relation(lost)) - 1),
            (4, "public.lost", 10),
            (4, None, 14),
            (5, "public.lost", 6),
        ]
    tagged, _ = pgo.tag([*wal[:3], wal[4][:1] + b"\0\0\0\2" + wal[4][5:14]])
    assert [
        relation
        for relation, kind in zip(*(tagged.column(n).to_pylist() for n in ("relation", "kind")), strict=True)
        if kind == ord("T")
    ] == [1, 2]
    with pytest.raises(pgo.DecodeError, match=r"^message 3, byte 10: "):
        pgo.decode([wal[0], wal[1], encode_message(5, "", b"", transactional=False), wal[4]])
