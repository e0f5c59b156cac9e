"""`follow`: the changes of a slot as they arrive, decoded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.decoding.decoder import Decoder
from pgoutput_fast.decoding.position import Position, PositionError
from pgoutput_fast.decoding.result import Decoded
from pgoutput_fast.live.positions import Acknowledged, Pause, StreamPosition
from pgoutput_fast.protocol.lsn import Lsn
from pgoutput_fast.schema.options import Options

if TYPE_CHECKING:
    from pgoutput_fast.live.reader import Reader

__all__ = ["follow"]

# A server removes WAL in files of 16 MiB, so an idle slot with this lag keeps hardly more WAL.
_IDLE_BYTES = 1 << 24


def follow(
    dsn: str,
    slot: str,
    publications: Sequence[str],
    options: Options | None = None,
    *,
    after: Position | str | None = None,
    until_lsn: Lsn | Literal["now"] | None = None,
    stop: threading.Event | None = None,
    two_phase: bool = False,
    overrides: Mapping[str, str | None] | None = None,
    retry_seconds: float = 300.0,
    receive_timeout: float | None = 60.0,
) -> Iterator[tuple[Decoded, Callable[[], None]]]:
    """Follows a slot: yields its changes as they arrive, and a function that acknowledges them.

    Call `acknowledge()` once the changes are safely stored. Then the server need not keep them, and the slot advances.
    It acknowledges all earlier changes, too. Changes that are not acknowledged are sent again to the next reader of the
    slot. So without `after`, each change is delivered at least once.

    If the connection is lost, this reconnects and continues after the changes already yielded: within one call, no
    committed change is yielded twice.

    For exactly-once delivery, store `str(decoded.position)` together with the changes, in one transaction of your
    database, and pass the stored position as `after` next time.

    Args:
        dsn: connection string of the database, with a user that may replicate.
        slot: the slot's name. It is created if it does not exist: then its changes begin now. Do not use the slot of a
            capture or a mirror: `follow` refuses it only while they run.
        publications: names of the publications, without SQL quotes.
        options: how to decode. The default is `Options(transactions="committed")`: changes are yielded when their
            transaction commits. With `"as_sent"`, they include changes of transactions that may still be rolled back,
            and after a lost connection an unfinished transaction is repeated.
        after: yield exactly the changes after this position: a `decoded.position`, or its text. Only for committed
            changes. Publications and `overrides` must be the same as when the position was created.
        until_lsn: end when everything committed up to this LSN was yielded: an LSN, as for `parse_lsn`, or `"now"` for
            the end of the server's log at the time of this call. None for no end.
        stop: end when this event is set.
        two_phase: whether a new slot decodes prepared transactions when they are prepared.
        overrides: plugin options that replace those of `capture.plugin_options`.
        retry_seconds: how long to retry if the server is unavailable, or the slot is in use.
        receive_timeout: seconds after which an unresponsive server counts as lost. None for never.

    Yields:
        `(decoded, acknowledge)`. Each `decoded` has changes, truncates, messages or rejects. The commit of a large
        transaction may yield several: the last one, whose `is_complete` is true, acknowledges the transaction. If you
        read `decoded.position` or pass `after`, an empty `decoded` is yielded after 16 MiB of the server's log without
        changes for you: store and acknowledge its position, too.

    Raises:
        ImportError: if psycopg2 is missing.
        TypeError: if `publications` is a text instead of a list.
        ValueError: for another wrong argument; from `acknowledge`, if the loop has ended.
        CaptureError: if the slot cannot be followed; the message says what to do.
        psycopg2.Error: if the server refuses, or is unavailable for too long.
        DecodeError: for a malformed message under `on_error="raise"`. Changes that were not acknowledged stay in the
            slot.

    The connection is kept alive while your code works on changes. The loop ends at the end of its iterator: a `break`
    closes the connection.

        import pgoutput_fast as pgo

        for decoded, acknowledge in pgo.follow("dbname=shop", "cache", ["orders"]):
            for change in decoded.changes:
                print(change.relation.qualified_name, change.batch.num_rows)
            acknowledge()

    >>> follow("dbname=shop", "cache", "orders")
    Traceback (most recent call last):
        ...
    pgoutput_fast.base.arguments._NotAListError: publications must be a list of names, not a str; for a single one put \
brackets around it: ["..."]
    """
    expect_list("publications", publications)
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"options must be an Options, not {type(options).__name__}")
    if receive_timeout is not None and not receive_timeout > 0:
        raise ValueError("receive_timeout must be positive, or None for never")
    options = options if options is not None else Options(transactions="committed")
    if isinstance(after, str):
        after = Position.parse(after)
    decoder = Decoder(options, after=after)
    # psycopg2 is needed from here on.
    from pgoutput_fast.capture.preparation import SlotSettings
    from pgoutput_fast.live.reader import Reader

    settings = SlotSettings(dsn, slot, tuple(publications), "walsender", two_phase, dict(overrides or {}))
    reader = Reader(
        settings,
        StreamPosition(keeps_prepared=options.transactions == "committed"),
        Acknowledged(
            0 if after is None else after.slot_lsn or after.commit_lsn, stores_positions=after is not None
        ),
        until_lsn=until_lsn,
        stop=stop if stop is not None else threading.Event(),
        retry_seconds=retry_seconds,
        receive_timeout=receive_timeout or 0.0,
        after=after,
    )
    return _decoded(reader, decoder)


def _decoded(reader: Reader, decoder: Decoder) -> Iterator[tuple[Decoded, Callable[[], None]]]:
    """Decodes what the reader receives.

    For a reader that stores positions, yields empty results now and then, so that an idle slot advances.
    """
    position, acknowledged = reader.position, reader.acknowledged
    before: Position | None = None  # of the previous result, if positions are stored
    is_open = False  # whether the previous result is a part of a transaction
    with reader, decoder:
        for received in reader:
            if received is None:
                decoder.start_session()
                position.start_session()
                continue
            least = _IDLE_BYTES
            if isinstance(received, Pause):
                if not position.is_inside:
                    position.advance(received.lsn)
                results = iter([(decoder.decode([]), position.given)])
                least = 1 if received.is_urgent else _IDLE_BYTES
            else:
                batch = pa.record_batch({"payload": received.payloads, "lsn": received.lsns})
                results = _with_slot_lsns(decoder.stream([batch]), position)
                del batch
            for decoded, lsn in results:
                is_due = acknowledged.stores_positions and acknowledged.lags(lsn, least)
                if _has_something(decoded) or (is_open and decoded.is_complete) or is_due:
                    handed_out = acknowledged.hand_out(lsn)
                    yield decoded.at_slot(handed_out.stored, before), handed_out.acknowledge
                    is_open = not decoded.is_complete
                    before = decoded.position if acknowledged.stores_positions else None
                else:
                    acknowledged.extend(lsn)
                del decoded  # otherwise it stays in memory while the next one is decoded
            del received, results
            if reader.until_lsn is not None and position.decoded >= reader.until_lsn:
                return


def _with_slot_lsns(results: Iterator[Decoded], position: StreamPosition) -> Iterator[tuple[Decoded, int]]:
    """Yields each piece of a batch with the LSN from which the slot may continue after it.

    The ends of transactions come with a piece before their changes, so this LSN advances when all of them are yielded.

    Raises:
        CaptureError: if the server does not send the changes before the position from which this continues.
    """
    lsn = position.given
    try:
        for result in results:
            position.follow(result.transactions)
            if result.is_between_transactions:
                lsn = position.given
            yield result, lsn
            del result
    except PositionError as problem:
        from pgoutput_fast.capture.errors import CaptureError

        raise CaptureError(str(problem)) from None


def _has_something(decoded: Decoded) -> bool:
    tables: tuple[Any, ...] = decoded.truncates, decoded.messages, decoded.rejects
    return bool(decoded.changes) or any(table.num_rows for table in tables)
