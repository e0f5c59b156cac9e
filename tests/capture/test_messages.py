"""Logical messages outside of transactions: which sessions repeat, and which may be all that ever comes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast.capture import Capture, find_slot
from pgoutput_fast.capture.recorder import Limits, Recorder
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.postgres.walsender import Received
from pgoutput_fast.segments import Source, list_segments, read_segment
from support import pg
from support.capturing import Running, committed, expect_exactly_once, now, slot, wait_until

pytestmark = pytest.mark.few_servers

__all__ = ["slot"]  # a fixture


@pytest.fixture(autouse=True)
def _has_messages(database: pg.Database) -> None:
    if database.version not in (14, max(pg.installations())):
        pytest.skip("the oldest and the newest version that sends them will do")


def _received(sent: list[pg.Payload], *, starts_session: bool = False) -> Received:
    payloads = pa.array([payload for _, payload in sent], pa.binary())
    return Received(payloads, pa.array([lsn for lsn, _ in sent], pa.int64()), 1, starts_session)


def test_messages_that_come_again(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """Whole segments of them, at the beginning of a session, alone, and before and behind something new."""
    emit = "SELECT pg_logical_emit_message(false, 'beat', '{}')"
    insert = "INSERT INTO counted VALUES ({}, 1)"
    statements = [*map(emit.format, range(3)), insert.format(1), emit.format(3), insert.format(2)]
    sent = database.capture(statements, options={"messages": "true"})
    sent = sent[[payload[:1] for _, payload in sent].index(b"M") :]
    beats = sent[:3]
    second = next(k for k in range(4, len(sent)) if sent[k][1][:1] == b"M")
    target = SegmentDirectory(tmp_path)
    with target.owned(), Recorder(target, Source("1", "shop", "slot"), None, 0, Limits()) as recorder:
        for batch in (
            _received(beats),
            _received(beats, starts_session=True),
            _received(beats[1:]),
            _received(beats[2:] + sent[3:second] + beats[:1]),
            _received([*beats, sent[second], *beats, *sent[second + 1 :]], starts_session=True),
        ):
            recorder.offer(batch, 10)
            recorder.make_durable()
        assert recorder.idle
        assert recorder.progress.messages == recorder.progress.stored == 3 + 3 + 2 + 2 + 6 + len(sent[3:])
    segments = list_segments(tmp_path)
    kinds = b"".join(bytes(read_segment(each.path)["kind"].to_pylist()) for each in segments)
    assert kinds.count(b"M") == 4
    assert kinds.count(b"\0") == 3  # one for each session
    assert committed(tmp_path).table("public.counted").column("id").to_pylist() == [1, 2]
    # Readers take ordinals that lack for segments that were removed.
    assert [each.first_seq for each in segments[1:]] == [each.last_seq + 1 for each, _ in pairwise(segments)]


@pytest.mark.parametrize("through", ["walsender", "sql"])
def test_a_slot_of_which_nothing_else_is_sent(
    database: pg.Database, slot: str, tmp_path: Path, through: Any
) -> None:
    """It follows the messages, and what began before them and commits behind them comes all the same."""
    limits = Limits(seconds=0.2)
    capture = Capture(database.dsn, slot, ["captured"], tmp_path, limits=limits, through=through)
    database.execute("INSERT INTO counted VALUES (1, 1)")
    with database.session() as late, database.session() as beating, beating.cursor() as cursor:
        late.autocommit = False
        late.cursor().execute("INSERT INTO counted VALUES (2, 1)")

        def reached(lsn: int) -> bool:
            cursor.execute("SELECT pg_logical_emit_message(false, 'beat', 'x')")
            return (list_segments(tmp_path)[-1].end_lsn or 0) >= lsn

        with Running(capture) as running:
            wait_until(lambda: running.failed or list(tmp_path.glob("*.parquet")))
            lsn = now(database)
            wait_until(lambda: running.failed or reached(lsn))
            wait_until(
                lambda: (
                    running.failed or getattr(find_slot(database.dsn, slot), "confirmed_flush_lsn", 0) >= lsn
                )
            )
        assert running.failed is None
        # The record of the commit follows upon that of a message.
        cursor.execute("SELECT pg_logical_emit_message(false, 'beat', 'last')")
        late.commit()
    capture.run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path)


def test_a_commit_behind_each_message(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """Segments that end with a message, and are gone on from by another session."""
    capture = Capture(database.dsn, slot, ["captured"], tmp_path, limits=Limits(rows=1))
    for k in range(4):
        database.execute("SELECT pg_logical_emit_message(false, 'beat', 'x')")
        lsn = now(database)
        database.execute(f"INSERT INTO counted VALUES ({k}, 1)")
        # It ends between the two.
        capture.run(until_lsn=lsn)
        capture.run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path)
    segments = list_segments(tmp_path)
    kinds = b"".join(bytes(read_segment(each.path)["kind"].to_pylist()) for each in segments)
    assert kinds.count(b"M") == 4
