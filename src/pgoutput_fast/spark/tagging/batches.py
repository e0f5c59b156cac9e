"""Tags the micro-batches of a streaming query, each with the state after the previous one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.spark.dataframes.tagged import Ends, ends_of
from pgoutput_fast.spark.tagging.states import given_state
from pgoutput_fast.spark.tagging.tag import tag
from pgoutput_fast.storage.paths import absolute
from pgoutput_fast.storage.stores import Store, open_store

__all__ = ["tag_batches"]

FORMAT = 1
_NAME = re.compile(r"([0-9]{20})\.json")


def tag_batches(
    directory: str | os.PathLike[str],
    order_by: str | Sequence[str],
    sink: Callable[[DataFrame, int], object],
    *,
    payload: str | None = None,
    state: StreamState | str | None = None,
    lsn: str | None = None,
    session_starts: str | None = None,
    gaps: Literal["error", "allow"] = "error",
    on_error: Literal["raise", "quarantine"] = "raise",
) -> Callable[[DataFrame, int], None]:
    """Returns a function for `foreachBatch` that tags each micro-batch of raw payloads and passes it to `sink`.

    Each micro-batch continues with the state of the previous one. When `sink` has returned, the state after the batch
    is stored in `directory`, durably and under the number of the batch, before Spark marks the batch as done in its
    checkpoint. If Spark runs a batch again, it begins with the same state and gets the same rows, including ordinals.
    So `sink` may get a batch twice, as in any `foreachBatch`: write it so that it replaces the first attempt.

    `tag` reads a micro-batch three times or more. If its source is slow, cache it first: call the returned function
    from your own function, between `batch.persist()` and `batch.unpersist()`.

    Args:
        directory: a path, or a URI that `pyarrow.fs` knows, used only by this query. Keep it beside the checkpoint, and
            remove both or none. It is created if it does not exist, and keeps the states of as many batches as Spark's
            checkpoint does (`spark.sql.streaming.minBatchesToRetain`).
        order_by, payload, lsn, session_starts, gaps, on_error: as for `tag`. If `order_by` is one column of integers, a
            batch must also continue where the previous one ended: by one, or with `gaps="allow"` anywhere after it.
        sink: a function of the tagged payloads and the batch number.
        state: the state before the first batch, or its JSON text. Default: the beginning of a stream. Stored states
            take precedence.

    Raises:
        TypeError, ValueError: for a `state` from which `tag` cannot continue. The query fails with a ValueError if
            `directory` lacks the state of the previous batch or has those of later batches, if a batch does not
            continue the previous one, and as `tag`.

    Example:
        def store(wal, batch_id):
            wal.write.mode("overwrite").parquet(f"tagged/batch={batch_id}")

        tag_and_store = pgspark.tag_batches("states", "offset", store)
        messages.writeStream.foreachBatch(tag_and_store).option("checkpointLocation", "checkpoint").start()
    """
    options = {
        "payload": payload,
        "lsn": lsn,
        "session_starts": session_starts,
        "gaps": gaps,
        "on_error": on_error,
    }
    first = None if state is None else given_state(state)
    open_store(directory)  # an error for a URI that was converted to a Path
    # With Spark Connect the function runs in another process.
    return _TagBatches(_States(open_store(absolute(directory)), first), order_by, sink, options)


@dataclass(frozen=True)
class _TagBatches:
    states: _States
    order_by: str | Sequence[str]
    sink: Callable[[DataFrame, int], object]
    options: dict[str, Any]

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        before, last = self.states.before(batch_id)
        tagged = tag(batch, self.order_by, state=before, **self.options)
        ends = ends_of(tagged)
        assert ends is not None
        self._check_place(ends, last)
        self.sink(tagged, batch_id)
        self.states.put(batch_id, ends.after, _place(ends.last, last))
        kept = int(str(batch.sparkSession.conf.get("spark.sql.streaming.minBatchesToRetain")))
        self.states.remove_before(batch_id - kept)

    def _check_place(self, ends: Ends, last: int | None) -> None:
        """Checks that a batch continues where the previous one ended, as far as the order tells."""
        first = _place(ends.first, None)
        if last is None or first is None:
            return
        if first <= last or (self.options["gaps"] == "error" and first != last + 1):
            name = self.order_by if isinstance(self.order_by, str) else self.order_by[0]
            hint = "" if first <= last else ": pass gaps='allow' if nothing is missing between them"
            raise ValueError(
                f"the batch before ended with {name} = {last}, and this one begins with {name} = {first}{hint}"
            )


def _place(values: tuple[Any, ...], otherwise: int | None) -> int | None:
    """Returns a position in an order by a single integer."""
    is_integer = len(values) == 1 and isinstance(values[0], int) and not isinstance(values[0], bool)
    return values[0] if is_integer else otherwise


class _States:
    """The stored states after batches, one file per batch.

    Args:
        store: the store with the files.
        first: the state before the first batch; None for the beginning of a stream.
    """

    def __init__(self, store: Store, first: StreamState | None) -> None:
        self._store = store
        self._first = first

    def before(self, batch_id: int) -> tuple[StreamState | None, int | None]:
        """Returns the state before a batch, and the position of the last message before it, if known.

        Raises:
            ValueError: if the directory does not match the batch, or if a file is damaged.
        """
        stored = self._stored()
        later = [each for each in stored if each > batch_id]
        if later:
            raise ValueError(
                f"{self._store} has the state after batch {max(later)}, but Spark runs batch {batch_id}: the "
                "directory belongs to another checkpoint, or an older checkpoint was restored. Use an empty directory "
                "for a new checkpoint. For an older one, remove the files of the batches from "
                f"{batch_id} on, and what the sink has of them"
            )
        if batch_id - 1 in stored:
            return self._read(batch_id - 1)
        if batch_id > 0 and (stored or self._first is None):
            raise ValueError(
                f"{self._store} has no state after batch {batch_id - 1}, with which batch {batch_id} continues. "
                "Restore the file, or begin with a new checkpoint, an empty directory and state="
            )
        return self._first, None

    def put(self, batch_id: int, state: StreamState, last: int | None) -> None:
        """Stores the state after a batch durably."""
        document = {"format": FORMAT, "batch": batch_id, "last": last, "state": parsed_json(state.to_json())}
        self._store.make()
        self._store.put(f"{batch_id:020}.json", json.dumps(document, ensure_ascii=False).encode())

    def remove_before(self, batch_id: int) -> None:
        """Removes the states of the batches before this one."""
        for each in self._stored():
            if each < batch_id:
                self._store.remove(f"{each:020}.json")

    def _stored(self) -> list[int]:
        """Returns the numbers of the batches whose states are stored."""
        self._store.make()
        return [int(match[1]) for name in self._store.names() if (match := _NAME.fullmatch(name))]

    def _read(self, batch_id: int) -> tuple[StreamState, int | None]:
        name = f"{batch_id:020}.json"
        try:
            document = parsed_json(self._store.read(name))
            if document["format"] != FORMAT or document["batch"] != batch_id:
                raise ValueError("another version of pgoutput_fast wrote it, or it was renamed")
            return StreamState.from_json(json.dumps(document["state"])), document["last"]
        except (KeyError, TypeError, ValueError) as problem:
            raise ValueError(
                f"{self._store}: {name} is not the state after a batch: {problem}. Restore the file"
            ) from None
