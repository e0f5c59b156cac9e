"""Refuses an emptied directory of segments, in which a capture would number messages from 0 again."""

from __future__ import annotations

from collections.abc import Sequence

from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.mirror.errors import MirrorSegmentsGoneError
from pgoutput_fast.mirror.state.mirror_state import Progress
from pgoutput_fast.segments.names import Named, named_segments
from pgoutput_fast.storage.stores import Store

__all__ = ["expect_newest", "expect_segments"]


def expect_segments(
    segments: Store, directory: SegmentDirectory, progress: Progress, history_lsn: int
) -> None:
    """Expects the segments from which a capture continues the stream. Call it before a capture begins.

    Args:
        segments: the directory.
        directory: the same, as the capture sees it.
        progress: of all tables.
        history_lsn: all histories have the commits up to this LSN.

    Raises:
        MirrorSegmentsGoneError: if somebody has removed them.
    """
    found = named_segments(segments)
    expect_newest(segments, found, progress)
    # The directory reported a position before, and has neither a position nor segments now.
    if not found and history_lsn > progress.lsn and not directory.durable_lsn():
        raise _segments_gone(segments, "has neither segments nor a position")


def expect_newest(segments: Store, found: Sequence[Named], progress: Progress) -> None:
    """Expects the last segment that was taken, or a newer one. Retention never removes the newest one.

    Args:
        segments: the directory.
        found: its segments, in the order of the stream.
        progress: how far they are read.

    Raises:
        MirrorSegmentsGoneError: if somebody has removed it.
    """
    newest = found[-1].last_seq if found else -1
    if newest < progress.last_seq:
        what = f"ends at message {newest}" if found else "has no segments"
        raise _segments_gone(
            segments, f"{what}, but the mirror has taken the messages up to {progress.last_seq}"
        )


def _segments_gone(segments: Store, what: str) -> MirrorSegmentsGoneError:
    return MirrorSegmentsGoneError(
        f"{segments} {what}: somebody removed the newest segment, without which no capture can continue. Restore the "
        "directory. If you cannot, drop the slot with drop_slot, and repair the mirror with Mirror.repair (--repair). "
        "To free space, let the mirror remove the segments that it has applied (--remove-segments)"
    )
