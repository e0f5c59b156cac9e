"""Typed files beside segments: committed changes as plain Parquet, which you can read without this package.

A segment's typed files have the transactions whose commit lies in it, wherever their rows lie. They follow from the
segments alone: the next process writes the unfinished files of a killed process again, under the same names.
"""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from pgoutput_fast.committed.outcomes import values_of
from pgoutput_fast.decoding.decoder import decode_tagged
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.schema.options import Options
from pgoutput_fast.segments.committed import CommittedChanges
from pgoutput_fast.segments.names import Named, named_segments, ordinals_of
from pgoutput_fast.segments.read import open_segment, read_segment
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.typed_files.output import TypedOutput
from pgoutput_fast.typed_files.progress import Progress, read_progress, typed_files, write_progress

__all__ = ["TypedFiles"]


class TypedFiles:
    """Makes typed files of segments, in their order.

    Args:
        store: the store with the segments.
        options: how to decode. Rows of open transactions wait in memory up to `memory_limit`, then in files in
            `spill_directory`.
    """

    def __init__(self, store: Store, options: Options) -> None:
        self._store = store
        self._options = dataclasses.replace(options, transactions="as_sent")
        self._committed = CommittedChanges(store, self._options)
        self._last_seq: int | None = None

    def catch_up(self) -> None:
        """Makes the files of all segments that have none.

        Raises:
            ValueError: if a segment without typed files is gone, or a segment is damaged.
            OSError: if a file cannot be written. Nothing is lost: the next call makes it.
        """
        segments, progress = named_segments(self._store), read_progress(self._store)
        if progress is None:
            done: list[Named] = []
        else:
            done = [each for each in segments if each.last_seq <= progress.last_seq]
            if not segments or segments[-1].last_seq < progress.last_seq:
                raise ValueError(
                    f"the typed files go up to message {progress.last_seq}, but the segments do not: the files belong "
                    "to another capture. Move them to another directory"
                )
            if segments[0].first_seq > progress.next_seq:
                raise ValueError(
                    f"the typed files go up to message {progress.last_seq}, but the segments begin at message "
                    f"{segments[0].first_seq}: the files lack what committed in between. Move them to another "
                    "directory"
                )
        self._committed.resume(done)
        self._last_seq = done[-1].last_seq if done else None
        after = -1 if progress is None else progress.last_seq
        for each in segments[len(done) :]:
            segment = open_segment(self._store.at(each.name))
            if segment.joined is not None:
                self._remove_unfinished(each, after)
            self._make(each.name, read_segment(segment.path), segment.state, after)

    def follow(self, name: str, rows: pa.Table, state: StreamState, before: int | None) -> None:
        """Makes the files of a segment that was just written.

        Args:
            name: name of the segment.
            rows: its rows, in stream order.
            state: the state of the stream behind it.
            before: ordinal of the last message in the segment before it; None if it is the first.

        Raises:
            ValueError, OSError: as `catch_up`.
        """
        if self._last_seq != before:
            self.catch_up()  # another process wrote segments in the meantime
        else:
            self._make(name, rows, state)

    def _remove_unfinished(self, joined: Named, after: int) -> None:
        """Removes typed files behind the progress, of segments that were joined into one meanwhile.

        A killed process left them. Nobody writes them again under their names: the joined segment has another one.
        """
        for file in typed_files(self._store):
            name = file.name.rpartition("/")[2]
            try:
                first, last = ordinals_of(name)
            except ValueError:  # no capture wrote it
                continue
            if name != joined.name and first >= joined.first_seq and after < last <= joined.last_seq:
                self._store.remove(file.name)

    # ---- a segment -----------------------------------------------------------------------------------------------

    def _make(self, name: str, rows: pa.Table, state: StreamState, after: int = -1) -> None:
        """Makes the files of a segment, with the transactions whose commit lies after message `after`."""
        self._last_seq = None  # until this is done: after an error some waiting changes may be gone
        with TypedOutput(self._store, name) as output:
            for batch, catalog in self._committed.of(rows, state, after):
                output.add(decode_tagged(batch, catalog, self._options))
        last_seq = int(values_of(rows, "seq").max())
        write_progress(self._store, Progress(last_seq, state.next_seq))
        self._last_seq = last_seq
