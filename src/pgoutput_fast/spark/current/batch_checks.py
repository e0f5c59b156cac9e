"""Whether a batch of a sink of current tables continues where its tables are."""

from __future__ import annotations

from collections.abc import Collection

from pgoutput_fast.segments.names import named_segments
from pgoutput_fast.spark.current.mirrored import Mirrored
from pgoutput_fast.spark.current.notes import NOTES_FILE, Notes
from pgoutput_fast.spark.current.remedies import LOAD_AGAIN, START_AGAIN
from pgoutput_fast.spark.source.stream_files import Emitted
from pgoutput_fast.storage.paths import absolute, redacted_uri
from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.tables.directories import CURRENT

__all__ = ["check_begin", "check_notes", "check_tables", "check_target"]


def check_target(store: Store, before: Notes, found: Emitted) -> None:
    """Checks that a query with earlier batches finds their notes.

    Raises:
        ValueError: if they are missing.
    """
    if before.seq is None and found.began is not None and found.first > found.began:
        raise ValueError(
            f"the query began at message {found.began} and goes on at message {found.first}, but {store} has "
            f"no record of earlier messages: the target was lost, or replaced. {START_AGAIN}"
        )


def check_notes(store: Store, before: Notes, first: int) -> None:
    """Checks that notes exist if tables do: without them, missing messages would go unnoticed.

    Raises:
        ValueError: if they do not, and the batch does not begin with the first message.
    """
    if before.directory is None and first > 0 and any(store.entries(CURRENT, recursive=True)):
        raise ValueError(
            f"{store} has current tables, but {NOTES_FILE}, which records the messages that they have, is gone, and "
            f"the batch begins at message {first}. {START_AGAIN}"
        )


def check_tables(
    store: Store, tables: Collection[str] | None, before: Notes, directory: str, first: int
) -> None:
    """Checks that a previously excluded table gets its messages from the beginning, because nothing has loaded it.

    Raises:
        ValueError: if it does not, or if a stopped table lacks messages of another directory.
    """
    _check_stopped(store, tables, before, directory)
    added = before.left_out(redacted_uri(absolute(directory)), tables)
    begin = next((each.first_seq for each in named_segments(open_store(directory))), 0)
    if added is not None and first > begin:
        raise ValueError(
            f"the sink was told to keep {added} in {store}, too, but the batch begins at message {first}: "
            f"the changes of {added} before it are missing. Start the query with a new checkpoint, so that it "
            "reads all segments. Tables skip the changes that they have. If the segments do not begin "
            "with the table, load the target with a Mirror first"
        )


def _check_stopped(store: Store, tables: Collection[str] | None, before: Notes, directory: str) -> None:
    """Checks that no stopped table lacks messages of another directory: those of this one would hide that.

    Raises:
        ValueError: if one does.
    """
    lagging = before.lagging(redacted_uri(absolute(directory)), tables)
    if lagging:
        raise ValueError(
            f"{', '.join(lagging)} in {store} is stopped, and lacks changes from {before.directory}: let a query read "
            f"these first, or leave the table out (tables). {LOAD_AGAIN}"
        )


def check_begin(store: Store, first: int, notes: Notes, mirrored: Mirrored | None) -> None:
    """Checks that no message is missing before a batch. A mirror may have applied some.

    Raises:
        ValueError: if some are.
    """
    known = [notes.seq] if notes.seq is not None else []
    if mirrored is not None:
        known.append(mirrored.last_seq)
    if known and first > max(known) + 1:
        raise ValueError(
            f"the tables in {store} have the messages up to {max(known)}, but the batch begins at message "
            f"{first}: messages in between are missing. Let the query begin there (option starting). Or "
            f"s{START_AGAIN[1:]}"
        )
