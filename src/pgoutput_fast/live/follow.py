"""`follow`: the changes of a slot as they arrive, decoded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from pgoutput_fast.arguments import expect_list
from pgoutput_fast.decoding.decoder import Decoder
from pgoutput_fast.decoding.result import Decoded
from pgoutput_fast.live.positions import Acknowledged, StreamPosition
from pgoutput_fast.protocol.lsn import Lsn
from pgoutput_fast.schema.options import Options

if TYPE_CHECKING:
    from pgoutput_fast.live.reader import Reader

__all__ = ["follow"]


def follow(
    dsn: str,
    slot: str,
    publications: Sequence[str],
    options: Options | None = None,
    *,
    until_lsn: Lsn | Literal["now"] | None = None,
    stop: threading.Event | None = None,
    two_phase: bool = False,
    overrides: Mapping[str, str | None] | None = None,
    retry_seconds: float = 300.0,
    receive_timeout: float | None = 60.0,
) -> Iterator[tuple[Decoded, Callable[[], None]]]:
    """Follows a slot: yields its changes as they arrive, and a function that acknowledges them.

    Call `acknowledge()` when the changes are safe in their place. Then the server need not keep them, and the slot goes
    on. It acknowledges all changes before them, too. What is not acknowledged comes again when somebody follows the
    slot next. So each change comes at least once: after a kill, `_commit_lsn` and `_seq` of the changes that you have
    say which are new, if you store them with the changes.

    If the connection is lost, this connects again and goes on behind the changes that it has given: within one call,
    no committed change comes twice.

    Args:
        dsn: of the database, with a user that may replicate.
        slot: the slot's name. It is created if it does not exist: then its changes begin now.
        publications: names of the publications, without SQL quotes.
        options: how to decode. The default is `Options(transactions="committed")`: changes come when their transaction
            commits. With `"as_sent"`, changes of transactions that may still be rolled back come, too, and after a lost
            connection an unfinished transaction comes again.
        until_lsn: end when everything that committed up to this LSN was given: an LSN, as for `parse_lsn`, or `"now"`
            for the end of the server's log at the time of this call. None for no end.
        stop: end when this event is set.
        two_phase: whether a new slot decodes prepared transactions when they are prepared.
        overrides: plugin options that replace those of `capture.plugin_options`.
        retry_seconds: how long to wait for a server that is away, or for a slot that is in use.
        receive_timeout: seconds after which a server that answers nothing counts as lost. None for never.

    Yields:
        `(decoded, acknowledge)`. Each `decoded` has changes, truncates, messages or rejects. The commit of a large
        transaction may give several: the last one acknowledges the transaction.

    Raises:
        ImportError: if psycopg2 is missing.
        TypeError: if `publications` is a text instead of a list.
        ValueError: for another wrong argument; from `acknowledge`, if the loop has ended.
        CaptureError: if the slot cannot be followed; the message says what to do.
        psycopg2.Error: if the server refuses, or is away for too long.
        DecodeError: for a malformed message under `on_error="raise"`. What was not acknowledged stays in the slot.

    The server hears from this connection while your code works on changes. The loop ends at the end of its iterator: a
    `break` closes the connection.

        import pgoutput_fast as pgo

        for decoded, acknowledge in pgo.follow("dbname=shop", "cache", ["orders"]):
            for change in decoded.changes:
                print(change.relation.qualified_name, change.batch.num_rows)
            acknowledge()

    >>> follow("dbname=shop", "cache", "orders")
    Traceback (most recent call last):
        ...
    pgoutput_fast.arguments._NotAListError: publications must be a list of names, not a str; for a single one put \
brackets around it: ["..."]
    """
    expect_list("publications", publications)
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"options must be an Options, not {type(options).__name__}")
    if receive_timeout is not None and not receive_timeout > 0:
        raise ValueError("receive_timeout must be positive, or None for never")
    options = options if options is not None else Options(transactions="committed")
    # psycopg2 is needed from here on.
    from pgoutput_fast.capture.preparation import SlotSettings
    from pgoutput_fast.live.reader import Reader

    settings = SlotSettings(dsn, slot, tuple(publications), "walsender", two_phase, dict(overrides or {}))
    reader = Reader(
        settings,
        StreamPosition(keeps_prepared=options.transactions == "committed"),
        Acknowledged(),
        until_lsn=until_lsn,
        stop=stop if stop is not None else threading.Event(),
        retry_seconds=retry_seconds,
        receive_timeout=receive_timeout or 0.0,
    )
    return _decoded(reader, options)


def _decoded(reader: Reader, options: Options) -> Iterator[tuple[Decoded, Callable[[], None]]]:
    """Decodes what the reader receives."""
    position, acknowledged = reader.position, reader.acknowledged
    with reader, Decoder(options) as decoder:
        for received in reader:
            if received is None:
                decoder.start_session()
                position.start_session()
                continue
            if isinstance(received, int):
                if not position.is_inside:
                    position.advance(received)
                    acknowledged.extend(position.given)
            else:
                batch = pa.record_batch({"payload": received.payloads, "lsn": received.lsns})
                for decoded, lsn in _with_positions(decoder.stream([batch]), position):
                    if _has_something(decoded):
                        yield decoded, acknowledged.hand_out(lsn)
                    else:
                        acknowledged.extend(lsn)
                    del decoded  # otherwise it stays in memory while the next one is made
                del batch
            del received
            if reader.until_lsn is not None and position.decoded >= reader.until_lsn:
                return


def _with_positions(pieces: Iterator[Decoded], position: StreamPosition) -> Iterator[tuple[Decoded, int]]:
    """Yields each piece of a batch with the position from which the slot may go on behind it.

    The first piece has the boundary messages of the whole batch. So only behind the last piece the batch is given.
    """
    before, last = position.given, next(pieces, None)
    if last is not None:
        position.follow(last.transactions)
    while last is not None:
        following = next(pieces, None)
        yield last, position.given if following is None else before
        last = following


def _has_something(decoded: Decoded) -> bool:
    tables: tuple[Any, ...] = decoded.truncates, decoded.messages, decoded.rejects
    return bool(decoded.changes) or any(table.num_rows for table in tables)
