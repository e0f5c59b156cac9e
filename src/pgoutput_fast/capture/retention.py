"""How long segments are kept: until they are old enough, and no consumer needs them."""

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

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.segments.catalog import sweep_unused
from pgoutput_fast.segments.joined import removal_lock
from pgoutput_fast.segments.names import Named, cover, dated_segments
from pgoutput_fast.segments.read import open_segment
from pgoutput_fast.storage.stores import Store, open_store

__all__ = ["Consumers", "Retention", "expect_no_typed_files", "retain"]

_DIRECTORY = "_consumers"
_MOST_NAME = 200
# Earlier versions wrote decoded changes beside the segments, and their progress into this file.
_TYPED_PROGRESS = "typed/_progress.json"


class Consumers:
    """The positions of the consumers of a directory of segments: small files in `_consumers/`, on any store.

    Args:
        directory: directory of the segments; a path or a URI.

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
        """Stores a position durably.

        Args:
            name: the consumer's name.
            seq: the ordinal of the last message that the consumer has finished, -1 for none. The consumer still needs
                every transaction that commits after it, wherever its rows are.

        Raises:
            ValueError: for a name that is empty or too long, and for a position that is not an ordinal or -1.
            OSError: if the position cannot be written.
        """
        if isinstance(seq, bool) or not isinstance(seq, int) or not -1 <= seq < 1 << 63:
            raise ValueError(f"a position must be the ordinal of a message, or -1; not {seq!r}")
        written = datetime.now(UTC).isoformat(timespec="seconds")
        self._store.put(_file_of(name), json.dumps({"seq": seq, "written": written}).encode())

    def positions(self) -> dict[str, int]:
        """Returns {name: ordinal of the last message that the consumer has finished}.

        Raises:
            ValueError: for a file without a position; then nothing may be removed.
        """
        found = {}
        for entry in self._store.entries(_DIRECTORY):
            file = entry.name.rpartition("/")[2]
            if file.startswith(".") or not file.endswith(".json"):
                continue
            try:
                seq = parsed_json(self._store.read(entry.name))["seq"]
            except FileNotFoundError:
                continue  # removed in the meantime
            except (ValueError, KeyError, TypeError):
                seq = None
            if isinstance(seq, bool) or not isinstance(seq, int):
                raise ValueError(
                    f"{self._store}/{entry.name} has no position: set the position again, or remove the file"
                )
            found[unquote(file.removesuffix(".json"))] = seq
        return found

    def forget(self, name: str) -> bool:
        """Removes a consumer, so that its segments are no longer kept. Returns whether it existed."""
        return self._store.remove(_file_of(name))


@dataclass(frozen=True)
class Retention:
    """What a running capture keeps; see `retain`.

    Attributes:
        older_than: keep segments younger than this (a timedelta, or seconds).
        consumed: keep segments that a consumer still needs.

    Raises:
        ValueError: for a negative time, and if no attribute says what to remove.

    >>> Retention(older_than=timedelta(days=7), consumed=True).consumed
    True
    """

    older_than: timedelta | float | None = None
    consumed: bool = False

    def __post_init__(self) -> None:
        _seconds(self.older_than)
        _expect_a_limit(self.older_than, self.consumed)


def retain(
    directory: str | PathLike[str],
    *,
    older_than: timedelta | float | None = None,
    consumed: bool = False,
    dry_run: bool = False,
) -> list[Path | str]:
    """Removes segments that are no longer needed, the oldest first.

    If the remaining segments have a row of a transaction, they have all its rows. So an open transaction, streamed or
    prepared, keeps all segments from its beginning on. The newest segment stays: it has the state from which the stream
    continues.

    Args:
        directory: directory of the segments; a path or a URI.
        older_than: remove only segments written longer ago than this (a timedelta, or seconds): before now, by this
            machine's clock, and before the newest segment, by the modification times of the files.
        consumed: remove only segments before the one with the last message that every consumer (see `Consumers`) has
            finished; that segment stays, because its footer lists the open transactions. Without a consumer this has no
            effect; if `older_than` is missing, too, everything stays.
        dry_run: remove nothing.

    Returns:
        Paths of the segments that were removed, or would be, in stream order.

    Raises:
        ValueError: if neither argument says what to remove; for files that are not segments; and for unreadable
            positions.
        OSError: if a segment cannot be removed; some of the oldest ones may already be removed.
    """
    _expect_a_limit(older_than, consumed)
    store = open_store(directory)
    expect_no_typed_files(store)
    if dry_run:
        going = _unneeded(directory, store, older_than, consumed)[0]
        return [store.at(each.name) for each in going]
    # Joining segments in the meantime would bring removed ones back.
    with removal_lock(store):
        going, covered, oldest = _unneeded(directory, store, older_than, consumed)
        for each in going:
            # First the segments joined into it, which would otherwise become visible again.
            for part in [*covered.get(each, ()), each]:
                store.remove(part.name)
        # While readers may have segments that were joined into the oldest one, the relation versions of these stay,
        # too.
        if going and oldest is not None and oldest not in covered:
            sweep_unused(store, open_segment(store.at(oldest.name)).known, oldest.last_seq)
    return [store.at(each.name) for each in going]


def _unneeded(
    directory: str | PathLike[str], store: Store, older_than: timedelta | float | None, consumed: bool
) -> tuple[list[Named], dict[Named, list[Named]], Named | None]:
    """Returns (segments to remove, segments covered by joined ones, the oldest segment that stays or None)."""
    # Read the positions before the segments: segments written in the meantime are newer than every position.
    positions = Consumers(directory).positions()
    dated = dated_segments(store)
    segments, covered = cover(dated)
    times = [dated[each] for each in segments]
    most = len(segments) - 1
    if older_than is not None:
        before = _before(older_than, times)
        young = (k for k in range(len(times)) if not _is_older(store, segments[k], times[k], before))
        most = min(most, next(young, most))
    if consumed and positions:
        most = min(most, _ending_before(segments, min(positions.values())))
    elif consumed and older_than is None:
        most = 0
    count = _clean_cut(store, segments, most)
    return segments[:count], covered, segments[count] if segments else None


def expect_no_typed_files(store: Store) -> None:
    """Checks that no capture of an earlier version, with `typed=True`, wrote files of these segments.

    Their readers would miss later changes, and retention kept segments that were not yet in files.

    Raises:
        ValueError: if there are such files.
    """
    if _TYPED_PROGRESS in store.names("typed"):
        raise ValueError(
            f"{store} has typed files, which this version does not write: write tables from the segments with "
            f"pgspark.write_tables or pgspark.table_sink, and then remove {store}/{_TYPED_PROGRESS}"
        )


def _before(older_than: timedelta | float, modified: Iterable[float]) -> float:
    """Returns the time before which files are old. A clock that jumps forward makes nothing old by itself."""
    seconds, at = _seconds(older_than), time.time()
    return (min(at, max(modified, default=at)) if seconds else at) - seconds


def _is_older(store: Store, segment: Named, modified: float, before: float) -> bool:
    """Whether the newest rows of a segment were written before a time. A joined file is newer than its rows."""
    if modified < before:
        return True
    joined = open_segment(store.at(segment.name)).joined
    return joined is not None and joined.written < before


def _ending_before(segments: list[Named], seq: int) -> int:
    """Returns the number of segments that end before this message."""
    return bisect_left([each.last_seq for each in segments], seq)


def _clean_cut(store: Store, segments: list[Named], most: int) -> int:
    """Returns how many segments, at most `most`, can be removed without splitting the rows of a transaction."""
    while most > 0:
        begun = open_segment(store.at(segments[most - 1].name)).open_txns
        if not begun:
            return most
        # The segment in which the oldest transaction begins stays.
        most = min(most - 1, _ending_before(segments, begun[0]))
    return 0


def _expect_a_limit(older_than: timedelta | float | None, consumed: bool) -> None:
    if older_than is None and not consumed:
        raise ValueError("say what to remove: older_than=, consumed=True, or both")


def _seconds(duration: timedelta | float | None) -> float:
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration or 0)
    if not seconds >= 0:
        raise ValueError(f"a time to keep files cannot be negative: {duration!r}")
    return seconds


def _file_of(name: str) -> str:
    file = quote(name, safe="").replace(".", "%2E")
    if not 0 < len(file) <= _MOST_NAME:
        raise ValueError(f"a consumer's name must have 1 to {_MOST_NAME} characters, escaped: {name!r}")
    return f"{_DIRECTORY}/{file}.json"
