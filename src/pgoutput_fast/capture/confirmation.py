"""When a slot is confirmed to the server, and up to which position.

A position is confirmed if everything committed up to it is durable, and the publications existed until then. `PeekLoop`
of `sql_source.py` follows the same rule where a slot is advanced through SQL.
"""

from __future__ import annotations

from pgoutput_fast.capture.recorder import Recorder
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.capture.watch import Watch
from pgoutput_fast.postgres.walsender import Walsender

__all__ = ["Confirmation", "confirm"]


class Confirmation:
    """Confirms positions through a replication connection.

    Args:
        directory: the directory of the capture.
        watch: checks the publications.
        until_lsn: the capture ends when everything committed up to this LSN is durable; None for no end.
    """

    def __init__(self, directory: SegmentDirectory, watch: Watch, until_lsn: int | None) -> None:
        self._directory = directory
        self._watch = watch
        self._until_lsn = until_lsn

    def use_pause(self, sender: Walsender, recorder: Recorder) -> int:
        """Returns the LSN to confirm while the server sends nothing. Makes messages durable if the server waits.

        Raises:
            OSError: if the position of an idle slot cannot be saved.
        """
        durable = recorder.durable_lsn
        # A server that shuts down waits for the confirmation.
        is_urgent = sender.reply_requested or (
            self._until_lsn is not None and sender.wal_end >= self._until_lsn
        )
        if recorder.idle and sender.wal_end > durable:
            # All earlier commits have been received: confirming the position lets an idle slot release WAL.
            return max(durable, self._directory.confirmed.save(sender.wal_end, now=is_urgent))
        if is_urgent:
            recorder.flush()
        return durable


def confirm(sender: Walsender, watch: Watch, durable: int) -> None:
    """Confirms the durable position, if the publications existed until then.

    Args:
        sender: the connection.
        watch: checks the publications.
        durable: everything committed up to this LSN is durable.

    Raises:
        CaptureError: if a publication is missing, or another one has its name.
        psycopg2.Error: if the connection is lost.
    """
    if durable > sender.confirmed_lsn or watch.is_due:
        watch.check(sender.status)
    sender.confirm(durable)
    watch.set_confirmed(durable)
