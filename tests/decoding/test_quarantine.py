"""Whatever message is damaged: what is still decoded is what the sound stream gives, nothing else.

No reference decoder is needed to see that.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import (
    ColumnSpec,
    RelationSpec,
    encode_begin,
    encode_commit,
    encode_insert,
    encode_message,
    encode_relation,
    encode_stream_abort,
    encode_stream_start,
    encode_stream_stop,
    encode_truncate,
)
from support import pg
from support.fixtures import FILES, read
from support.forms import and_slow
from support.oracle import Row, plain_changes

SEED = os.environ.get("PGOUTPUT_FAST_SEED", "20260405")
DAMAGES_PER_FILE = 150


COLUMNS = (ColumnSpec("id", 23),)
KINDS = [bytes([kind]) for kind in b"BCORYIUDTMSEcAbPpKr"]


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
    """Cut short, lengthened, of no known kind, or of another kind, which is not always noticed."""
    way = rng.randrange(4)
    if way == 0:
        return data[: rng.randrange(len(data))]
    if way == 1:
        return data + b"\0"
    return (b"?" if way == 2 else rng.choice(KINDS)) + data[1:]


@pytest.mark.parametrize("view", and_slow(["committed"], ["as_sent"]))
@pytest.mark.parametrize(
    "path", and_slow(FILES[::3], [*FILES[1::3], *FILES[2::3]]), ids=lambda path: path.stem
)
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
            continue  # an abort without its position is an abort, and a new row may be that of an update
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
        for bad in (data[:-1], b"?" + data[1:], b"", *(kind + data[1:] for kind in KINDS if kind != b"A")):
            found, aside = rows_by_seq(
                [*payloads[:at], (lsn, bad), *payloads[at + 1 :]], "committed", "quarantine"
            )
            assert set(found) <= set(sound)
            assert set(sound) - set(found) <= aside


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("namespace", ["public", "N", "Orders", "K"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_relation_message_whose_first_byte_is_damaged(kind: bytes, namespace: str, streamed: bool) -> None:
    """The rows behind it are of the columns that it described, which are the same in another order."""
    before, after = (
        RelationSpec(0x4000, namespace, "t", tuple(ColumnSpec(name, 23) for name in names))
        for names in ("ab", "ba")
    )
    xid = 7 if streamed else None
    opened = [encode_stream_start(7, True)] if streamed else [encode_begin(100, 0, 7)]
    wal = [*opened, encode_relation(before, xid=xid), encode_insert(0x4000, ["1", "2"], xid=xid)]
    at = len(wal)
    wal += [encode_relation(after, xid=xid), encode_insert(0x4000, ["20", "10"], xid=xid)]
    assert _pairs(wal) == [(1, 2), (10, 20)]
    wal[at] = kind + wal[at][1:]
    if kind == b"R":
        return
    assert _pairs(wal) == [(1, 2)]
    again = [*wal, encode_relation(after, xid=xid), encode_insert(0x4000, ["40", "30"], xid=xid)]
    found = _pairs(again)
    # In a stream block, its own Relation messages count again. If it may have ended, only the next one does.
    assert found[0] == (1, 2)
    assert set(found) <= {(1, 2), (30, 40)}
    with pytest.raises(pgo.DecodeError, match=f"^message {at}"):
        pgo.decode(wal)


def _pairs(wal: list[bytes]) -> list[tuple[int, int]]:
    out = pgo.decode(wal, options=pgo.Options(on_error="quarantine"))
    rows = [row for each in out.changes for row in each.batch.to_pylist()]
    return [(row["a"], row["b"]) for row in sorted(rows, key=lambda row: row["_seq"])]


def test_a_change_with_a_value_that_is_damaged_is_a_change() -> None:
    """Behind the number of columns it is as no Relation message is. So the rows behind it are right."""
    table = RelationSpec(0x4000, "public", "t", (ColumnSpec("a", 23), ColumnSpec("b", 23)))
    row = encode_insert(0x4000, ["1", "2"])
    for damage in (row[:-1], row + b"\0", row[:8] + b"?" + row[9:], row[:-1] + b"x"):
        assert _pairs([encode_begin(100, 0, 7), encode_relation(table), damage, row]) == [(1, 2)]


def test_a_reject_gives_the_number_of_cells_sent_and_described() -> None:
    table = RelationSpec(0x4000, "public", "t", COLUMNS)
    row = encode_insert(0x4000, ["1"])
    for sent in (0, 2, 0x8000, 0xFFFF):
        damage = row[:6] + sent.to_bytes(2, "big") + row[8:]
        wal = [encode_begin(100, 0, 7), encode_relation(table), damage, encode_commit(100, 108, 0)]
        options = pgo.Options(on_error="quarantine")
        tagged, state = pgo.tag(wal)
        for out in (pgo.decode(wal, options=options), pgo.decode_tagged(tagged, state.catalog, options)):
            (reject,) = out.rejects.to_pylist()
            assert reject["reason"] == f"the tuple has {sent} cells, but its Relation describes 1 columns"
            assert (reject["relation"], reject["byte_offset"]) == ("public.t", 6)


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


def said(lsn: int) -> bytes:
    return encode_message(lsn, "p", str(lsn).encode(), transactional=False)


def lsns_of(sessions: list[list[bytes]], marked: bool) -> list[list[int]]:
    """LSNs of the logical messages that each session brought; between two, the state goes to JSON and back."""
    found, state = [], None
    for session in sessions:
        decoder = pgo.Decoder(pgo.Options(on_error="quarantine"), state)
        if marked:
            decoder.start_session()
        found.append(decoder.decode(session).messages.column("lsn").to_pylist())
        state = pgo.StreamState.from_json(decoder.state.to_json())
        assert state == decoder.state
    return found


@pytest.mark.parametrize("marked", [True, False])
def test_a_logical_message_that_was_set_aside_comes_when_it_is_sent_again(marked: bool) -> None:
    sent = [said(lsn) for lsn in (10, 20, 30, 40, 50)]
    bad = [sent[0], sent[1][:-1], sent[2][:-1], *sent[3:]]
    assert lsns_of([bad, sent, sent], marked) == [[10, 40, 50], [20, 30], []]
    # Twice damaged.
    assert lsns_of([bad, [*sent[:2], sent[2][:-1], *sent[3:]], sent, sent], marked) == [
        [10, 40, 50], [20], [30], [],
    ]  # fmt: skip
    # The last of a session, and one that follows a range of lost messages.
    assert lsns_of([[*sent[:3], sent[3][:-1]], sent[1:], sent], marked) == [[10, 20, 30], [40, 50], []]
    lost = [sent[0], b"C", sent[1], encode_begin(100, 0, 7), encode_commit(100, 108, 0), sent[2]]
    assert lsns_of([lost, sent[:3], sent], marked) == [[10, 30], [20], [40, 50]]
    # One that came well before is not given again for being damaged the second time.
    assert lsns_of([sent, [sent[0], sent[1][:-1], *sent[2:]], sent], marked) == [[10, 20, 30, 40, 50], [], []]


@pytest.mark.parametrize("marked", [True, False])
def test_logical_messages_come_once(marked: bool) -> None:
    sent = [said(10), said(20)]
    assert lsns_of([sent, sent, sent], marked) == [[10, 20], [], []]
    assert lsns_of([sent * 3], marked) == [[10, 20]]


def row_of_stream(*between: bytes, oid: int = 7) -> list[int]:
    """Ordinals of rows of a stream's inserts, after it lost a Relation; its JSON form is gone through, too."""
    plain = RelationSpec(oid, "public", "plain", COLUMNS)
    first = [encode_stream_start(7, True), b"R\0\0\0\x08\0", encode_stream_stop()]
    first += [encode_begin(100, 0, 9), encode_relation(plain), encode_commit(100, 108, 0)]
    rest = [*between, encode_stream_start(7, False)]
    rest += [encode_insert(oid, ["1"], xid=7), encode_stream_stop(), encode_begin(200, 0, 9)]
    rest += [encode_insert(oid, ["1"]), encode_commit(200, 208, 0)]
    options = pgo.Options(on_error="quarantine")
    whole = pgo.decode([*first, *rest], options=options)
    decoder = pgo.Decoder(options)
    decoder.decode(first)
    apart = pgo.Decoder(options, pgo.StreamState.from_json(decoder.state.to_json())).decode(rest)
    rows = [seq - len(first) for each in whole.changes for seq in each.batch.column("_seq").to_pylist()]
    assert [
        seq - len(first) for each in apart.changes for seq in each.batch.column("_seq").to_pylist()
    ] == rows
    return [seq - len(between) for seq in rows]


def test_a_stream_that_lost_a_relation_is_not_decoded_by_what_is_said_elsewhere() -> None:
    """Which relation it described cannot be read: it may have been this one, in another way."""
    assert row_of_stream() == [4]
    again = encode_relation(RelationSpec(7, "public", "own", COLUMNS), xid=7)
    other = encode_relation(RelationSpec(8, "public", "other", COLUMNS), xid=7)
    start, stop = encode_stream_start(7, False), encode_stream_stop()
    assert row_of_stream(start, other, stop) == [4]
    assert sorted(row_of_stream(start, again, stop)) == [1, 4]
    # What was rolled back was never said.
    assert sorted(row_of_stream(encode_stream_abort(7, 8))) == [1, 4]
    assert row_of_stream(encode_stream_abort(7, 9)) == [4]
    within = encode_relation(RelationSpec(7, "public", "own", COLUMNS), xid=9)
    assert row_of_stream(start, within, stop, encode_stream_abort(7, 9)) == [4]


def test_a_stream_may_have_lost_relations_among_lost_messages() -> None:
    table = RelationSpec(7, "public", "t", COLUMNS)
    wal = [encode_stream_start(7, True), encode_stream_stop(), encode_stream_start(7, False)[:-1]]
    wal += [encode_relation(table, xid=7), encode_stream_stop()]
    wal += [encode_begin(100, 0, 9), encode_relation(table), encode_commit(100, 108, 0)]
    inside = [encode_stream_start(7, False), encode_insert(7, ["1"], xid=7), encode_stream_stop()]
    out = pgo.decode([*wal, *inside], options=pgo.Options(on_error="quarantine"))
    assert [each.batch.num_rows for each in out.changes] == []
    assert out.rejects.column("seq").to_pylist() == [2, 3, 9]
    anew = [encode_stream_start(8, True), encode_insert(7, ["1"], xid=8), encode_stream_stop()]
    out = pgo.decode([*wal, *anew], options=pgo.Options(on_error="quarantine"))
    assert [each.batch.num_rows for each in out.changes] == [1]
