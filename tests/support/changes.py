"""Builds decoded changes of one table by hand."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pgoutput_fast.schema.metadata_columns import metadata_fields

__all__ = ["Changes"]


class Changes:
    """Changes of `public.t`. Each method stands for a message, and each call of `commit` ends a transaction.

    Arguments of the methods without underscore are values of columns; others are null. `_unchanged` and `_marks` name
    columns that were not sent, and columns whose value has no Arrow form.
    """

    def __init__(self, **columns: pa.DataType) -> None:
        self.columns = pa.schema(columns)
        self.rows: list[dict[str, Any]] = []
        self.seq = 0
        self.commit_lsn = 100

    def insert(self, **values: Any) -> Changes:
        return self._message([("insert", values)])

    def update(self, _old: dict[str, Any] | None = None, **values: Any) -> Changes:
        """`_old`: the old row, if it is sent; with `_key_only`."""
        before = [("update_preimage", _old)] if _old is not None else []
        return self._message([*before, ("update_postimage", values)])

    def delete(self, **values: Any) -> Changes:
        return self._message([("delete", values)])

    def truncate(self) -> Changes:
        return self._message([("truncate", {})])

    def commit(self) -> Changes:
        self.commit_lsn += 100
        return self

    def _message(self, images: list[tuple[str, dict[str, Any]]]) -> Changes:
        self.seq += 1
        for kind, values in images:
            row = {
                **values,
                "_change_type": kind,
                "_seq": self.seq,
                "_commit_lsn": self.commit_lsn,
                "_key_only": values.get("_key_only", False),
                "_unchanged": values.get("_unchanged"),
                "_unrepresentable": values.get("_marks"),
            }
            row.pop("_marks", None)
            self.rows.append(row)
        return self

    def table(self) -> pa.Table:
        said = {b"pg.namespace": b"public", b"pg.relation": b"t"}
        schema = pa.schema([*metadata_fields("_"), *self.columns], metadata=said)
        return pa.Table.from_pylist(self.rows, schema)
