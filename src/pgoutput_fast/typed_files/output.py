"""Writes the typed files of one segment: a Parquet file per relation version, in plain types, with bounded memory."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput_fast.decoding.result import Decoded
from pgoutput_fast.schema.plain import plain_schema, to_types
from pgoutput_fast.storage.parquet import rows_writer
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.typed_files.progress import rejects_file, typed_file

__all__ = ["TypedOutput"]

# If more bytes wait, the largest table is written out.
_MOST_BYTES = 1 << 26


class TypedOutput:
    """Collects decoded changes and writes them at its end. A context manager: after an error no file has appeared.

    Args:
        store: the store of the segments.
        segment: the segment's name.
    """

    def __init__(self, store: Store, segment: str) -> None:
        self._store, self._segment = store, segment
        self._waiting: dict[str, list[pa.Table]] = {}
        self._nbytes: dict[str, int] = {}
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._open = ExitStack()

    def __enter__(self) -> TypedOutput:
        self._open.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            for writer in self._writers.values():
                with suppress(Exception):
                    writer.close()
            self._open.__exit__(*error)  # type: ignore[arg-type]
            return
        with self._open:
            for name in list(self._waiting):
                self._flush(name)
            for writer in self._writers.values():
                writer.close()

    def add(self, decoded: Decoded) -> None:
        """Adds changes and their rejects."""
        for each in decoded.changes:
            self._add(typed_file(each.relation, self._segment), each.batch)
        if decoded.rejects.num_rows:
            self._add(rejects_file(self._segment), decoded.rejects)
        while sum(self._nbytes.values()) > _MOST_BYTES:
            name = max(self._nbytes, key=lambda each: self._nbytes[each])
            if name not in self._writers:
                file = self._open.enter_context(self._store.write(name, replace=True))
                self._writers[name] = rows_writer(file, self._waiting[name][0].schema)
            self._flush(name)

    def _add(self, name: str, batch: pa.RecordBatch) -> None:
        table = pa.Table.from_batches([batch])
        self._waiting.setdefault(name, []).append(to_types(table, plain_schema(table.schema)))
        self._nbytes[name] = self._nbytes.get(name, 0) + batch.nbytes

    def _flush(self, name: str) -> None:
        rows = pa.concat_tables(self._waiting.pop(name))
        del self._nbytes[name]
        if name in self._writers:
            self._writers[name].write_table(rows)
            return
        with self._store.write(name, replace=True) as file, rows_writer(file, rows.schema) as writer:
            writer.write_table(rows)
