"""How long segments stay: until they are old enough, and nobody needs them any more."""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from os import PathLike
from pathlib import Path
from urllib.parse import quote, unquote

from pgoutput_fast.capture.typed_progress import read_progress, typed_files
from pgoutput_fast.segment_known import sweep_unused
from pgoutput_fast.segment_names import Named, named_segments
from pgoutput_fast.segment_stores import Store, open_store
from pgoutput_fast.segments import open_segment

__all__ = ["Consumers", "Retention", "retain", "retain_typed"]

_ROOM = "_consumers"
_MOST_NAME = 200


class Consumers:
    """How far each consumer of a directory of segments is: small files in `_consumers/`, on any store.

    Args:
        directory: of the segments; a path or a URI.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     consumers = Consumers(directory)
    ...     consumers.set("lake", 41)
    ...     consumers.positions(), consumers.forget("lake"), consumers.positions()
    ({'lake': 41}, True, {})
    """

    def __init__(self, directory: str | PathLike[str]) -> None:
        self._store = open_store(directory)

    def set(self, name: str, seq: int) -> None:
        """Notes a position. It is durable when this returns.

        Args:
            name: the consumer's.
            seq: the ordinal of the last message that it is done with: what commits behind it is still needed, wherever
                its rows lie; -1 for none.

        Raises:
            ValueError: for a name that is empty or too long, and for no such position.
            OSError: if it cannot be written.
        """
        if isinstance(seq, bool) or not isinstance(seq, int) or not -1 <= seq < 1 << 63:
            raise ValueError(f"a position is the ordinal of a message, or -1; not {seq!r}")
        written = datetime.now(UTC).isoformat(timespec="seconds")
        self._store.put(_file_of(name), json.dumps({"seq": seq, "written": written}).encode())

    def positions(self) -> dict[str, int]:
        """{name: the ordinal of the last message that it is done with}.

        Raises:
            ValueError: for a file that says no position: nothing may be removed then.
        """
        found = {}
        for entry in self._store.entries(_ROOM):
            file = entry.name.rpartition("/")[2]
            if file.startswith(".") or not file.endswith(".json"):
                continue
            try:
                seq = json.loads(self._store.read(entry.name))["seq"]
            except FileNotFoundError:
                continue  # forgotten meanwhile
            except (ValueError, KeyError, TypeError):
                seq = None
            if isinstance(seq, bool) or not isinstance(seq, int):
                raise ValueError(
                    f"{self._store}/{entry.name} says no position: set it again, or remove the file"
                )
            found[unquote(file.removesuffix(".json"))] = seq
        return found

    def forget(self, name: str) -> bool:
        """Lets go of a consumer: nothing is kept for it any more. Whether it was known."""
        return self._store.remove(_file_of(name))


@dataclass(frozen=True)
class Retention:
    """What a running capture keeps; see `retain`.

    Attributes:
        older_than: segments younger than this stay.
        consumed: segments that a consumer still needs stay.
        typed_older_than: typed files older than this go; None keeps them all.

    >>> Retention(older_than=timedelta(days=7), consumed=True).consumed
    True
    """

    older_than: timedelta | float | None = None
    consumed: bool = False
    typed_older_than: timedelta | float | None = None

    def __post_init__(self) -> None:
        _seconds(self.older_than)
        _seconds(self.typed_older_than)
        if self.older_than is None and not self.consumed and self.typed_older_than is None:
            raise ValueError("say what may go: older_than=, consumed=True or typed_older_than=")


def retain(
    directory: str | PathLike[str],
    *,
    older_than: timedelta | float | None = None,
    consumed: bool = False,
    dry_run: bool = False,
) -> list[Path | str]:
    """Removes segments that are no longer needed, from the oldest on.

    What stays can be read as a whole: a transaction of which something stays is there from its first row on. So a
    transaction that is open, streamed or prepared, keeps everything from where it began. The newest segment stays: it
    says how the stream goes on. Nothing that typed files have yet to be made of goes.

    Args:
        directory: of the segments; a path or a URI.
        older_than: only segments that were written longer ago than this (a timedelta, or seconds): before now, by this
            machine's clock, and before the newest segment, by the files' times.
        consumed: only segments before the one that has the last message that a consumer (see `Consumers`) is done with:
            its footer says what is open there. Where there is no consumer, this says nothing: without `older_than`
            everything stays then.
        dry_run: remove nothing.

    Returns:
        What was removed, or would be, in stream order.

    Raises:
        ValueError: if neither says what may go; for files that are no segments, and for positions that cannot be read.
        OSError: if one cannot be removed; then a prefix of what should go is gone.
    """
    if older_than is None and not consumed:
        raise ValueError("say what may go: older_than=, consumed=True, or both")
    store = open_store(directory)
    # Before the segments are listed: those that come meanwhile are newer than what anybody is done with.
    positions = Consumers(directory).positions()
    segments = named_segments(store)
    most = len(segments) - 1
    if older_than is not None:
        before = _before(older_than, (each.modified for each in segments))
        most = min(most, next((k for k, each in enumerate(segments) if each.modified >= before), most))
    if consumed and positions:
        most = min(most, _ending_before(segments, min(positions.values())))
    elif consumed and older_than is None:
        most = 0
    progress = read_progress(store)
    if progress is not None:
        most = min(most, _ending_before(segments, progress.last_seq))
    going = segments[: _clean_cut(store, segments, most)]
    if not dry_run:
        for each in going:
            store.remove(each.name)
        if going:
            oldest = segments[len(going)]
            sweep_unused(store, open_segment(store.at(oldest.name)).known, oldest.last_seq)
    return [store.at(each.name) for each in going]


def retain_typed(
    directory: str | PathLike[str], *, older_than: timedelta | float, dry_run: bool = False
) -> list[Path | str]:
    """Removes typed files, and rejects, that were written longer ago than this (a timedelta, or seconds).

    Before now, and before the newest of them, as for `retain`.

    Returns:
        What was removed, or would be.

    Raises:
        OSError: if one cannot be removed; then some of what should go is gone.
    """
    store = open_store(directory)
    files = typed_files(store)
    before = _before(older_than, (each.modified for each in files))
    going = [each.name for each in files if each.modified < before]
    if not dry_run:
        for name in going:
            store.remove(name)
    return [store.at(name) for name in going]


def _before(older_than: timedelta | float, modified: Iterable[float]) -> float:
    """What was written before this is old. A clock that jumped forward makes nothing old by itself."""
    seconds, at = _seconds(older_than), time.time()
    return (min(at, max(modified, default=at)) if seconds else at) - seconds


def _ending_before(segments: list[Named], seq: int) -> int:
    """How many segments end before this message."""
    return bisect_left([each.last_seq for each in segments], seq)


def _clean_cut(store: Store, segments: list[Named], most: int) -> int:
    """How many segments, at most `most`, can go so that no transaction loses only a part of its rows."""
    while most > 0:
        begun = open_segment(store.at(segments[most - 1].name)).open_txns
        if not begun:
            return most
        # The segment in which the oldest begins stays.
        most = min(most - 1, _ending_before(segments, begun[0]))
    return 0


def _seconds(duration: timedelta | float | None) -> float:
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration or 0)
    if not seconds >= 0:
        raise ValueError(f"a time to keep something cannot be negative: {duration!r}")
    return seconds


def _file_of(name: str) -> str:
    file = quote(name, safe="").replace(".", "%2E")
    if not 0 < len(file) <= _MOST_NAME:
        raise ValueError(f"a consumer's name must have 1 to {_MOST_NAME} characters, escaped: {name!r}")
    return f"{_ROOM}/{file}.json"
