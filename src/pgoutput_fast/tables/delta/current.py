"""Current tables in Delta format. Needs `pip install 'deltalake>=1.6.6'`."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.damaged import DamagedError
from pgoutput_fast.tables.data_files import FILE_BYTES, DataFile, Version
from pgoutput_fast.tables.delta.appended import (
    CONFIGURATION,
    add_action,
    allow_timestamps,
    columns_error,
    reached,
)
from pgoutput_fast.tables.delta.statistics import mended_actions
from pgoutput_fast.tables.errors import LOAD_ANY_AGAIN
from pgoutput_fast.tables.file_table import ChangedError, FileTable
from pgoutput_fast.tables.files import WrittenFile

__all__ = ["DeltaCurrent"]

# The application whose transactions carry the position. `write_tables` uses another one, whose positions are ordinals.
_APPLICATION = "pgoutput_fast.mirror"
# The features that a table may require of its readers. With others, files may have rows that are not in the table.
_FEATURES = {"timestampNtz", "v2Checkpoint"}


class DeltaCurrent(FileTable):
    """A current table in Delta format.

    The position is the version of the application transaction `pgoutput_fast.mirror` in Delta's log.

    Args:
        target: the directory or URI with all tables.
        directory: the table's directory in it, as `delta_directory` names it.
        storage_options: options of delta-rs for the store, besides the URI.
        file_bytes: the largest size of a file, roughly.

    Raises:
        ImportError: if `deltalake` is not installed, or is too old.
    """

    _folded = True

    def __init__(
        self,
        target: str | os.PathLike[str],
        directory: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        try:
            import deltalake
            from deltalake.transaction import RemoveAction  # noqa: F401
        except ImportError:
            raise ImportError(
                "a mirror of Delta tables needs delta-rs: pip install 'deltalake>=1.6.6'"
            ) from None
        super().__init__(open_store(target), directory, file_bytes)
        self._delta = deltalake
        self._uri, said = reached(str(self._store.at(directory)))
        self._storage = {**said, **(storage_options or {})} or None
        self._table: Any = None
        self._seen: Version | None = None  # of `_table`

    def _can_widen(self, there: pa.DataType, wide: pa.DataType) -> bool:
        return True

    def all_again(self, before: Version, schema: pa.Schema) -> bool:
        # delta-rs does not support Delta's type widening. A commit that replaces all files may change types.
        return any(not field.type.equals(schema.field(field.name).type) for field in before.schema)

    def _load(self, number: int | None = None) -> Version | None:
        try:
            return self._newest() if number is None else self._version(self._at(number))
        except self._delta.exceptions.DeltaError as problem:
            self._table = None  # the next call opens it again, in case the table was restored or removed
            # delta-rs marks some errors of a store only by this text.
            if not self._store.local and "object store" in str(problem):
                raise
            if number is not None:
                raise FileNotFoundError(f"{self} has no version {number}, or has it no more") from problem
            raise DamagedError(self, problem, self._remove) from problem
        except ValueError:
            self._table = None
            raise

    def _newest(self) -> Version | None:
        if self._table is None:
            if not self._delta.DeltaTable.is_deltatable(self._uri, storage_options=self._storage):
                return None
            self._table = self._delta.DeltaTable(self._uri, storage_options=self._storage)
            self._seen = None
        else:
            self._table.update_incremental()
        if self._seen is None or self._seen.number != self._table.version():
            self._seen = self._version(self._table)
        return self._seen

    def _version(self, table: Any) -> Version:
        """
        Raises:
            ValueError: if a mirror did not make the table, or another program changed how it must be read.
        """
        position = table.transaction_version(_APPLICATION)
        if position is None:
            raise ValueError(f"{self} is not a table of a mirror: use another target, or remove it")
        protocol = table.protocol()
        unknown = set(protocol.reader_features or ()) - _FEATURES
        unknown |= {"columnMapping"} if protocol.min_reader_version == 2 else set()
        unknown |= {"partition columns"} if table.metadata().partition_columns else set()
        if unknown:
            raise ValueError(
                f"{self} was changed by something else: it has {' and '.join(sorted(unknown))}, which a mirror does "
                f"not know. Remove its directory, and {LOAD_ANY_AGAIN}"
            )
        files = pa.table(table.get_add_actions())
        return Version(
            number=table.version(),
            position=position,
            schema=stored_schema(pa.schema(table.schema().to_arrow()), "table"),
            files=[
                DataFile(name, rows, nbytes)
                for name, rows, nbytes in zip(
                    *(files.column(each).to_pylist() for each in ("path", "num_records", "size_bytes")),
                    strict=True,
                )
            ],
            bounds=lambda column: (_bound(files, "min", column), _bound(files, "max", column)),
        )

    def _commit(
        self,
        before: Version | None,
        schema: pa.Schema,
        position: int,
        added: Sequence[WrittenFile],
        removed: Collection[str] | None,
    ) -> None:
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import RemoveAction

        now = int(time.time() * 1000)
        actions = [add_action(each) for each in added]
        if before is not None and removed is not None:
            actions += [
                RemoveAction(file.name, True, now, file.nbytes, {})
                for file in before.files
                if file.name in removed
            ]
        try:
            whole = self._delta.Schema.from_arrow(schema)
            if before is None:
                return self._create(whole, actions, position)
            table = self._prepared(before, schema, whole, removed)
            table.create_write_transaction(
                actions,
                "overwrite" if removed is None else "append",
                whole,
                commit_properties=self._properties(position),
            )
        except CommitFailedError as problem:
            there = self._load()
            if (there and there.number) == (before and before.number):
                raise OSError(f"{self} cannot be written: {problem}") from problem
            raise ChangedError from problem
        except self._delta.exceptions.DeltaError as problem:
            self._table = None
            # This says whether the table is damaged. A table that somebody has removed is no new one.
            if self._load() is None and before is not None:
                raise DamagedError(self, problem, None) from problem
            raise
        except Exception as problem:
            if type(problem) is not Exception:
                raise
            raise columns_error(problem, str(self)) from problem

    def _prepared(
        self, before: Version, schema: pa.Schema, whole: Any, removed: Collection[str] | None
    ) -> Any:
        """The table, prepared for a commit of this schema by commits of its own, without rows.

        If the rows are replaced, so are the columns. But a table that had no timestamps without a time zone may lack
        the feature that they need.
        """
        table = self._at(before.number)
        if removed is None:
            more = allow_timestamps(table, whole, self._properties(before.position))
            return self._at(before.number + 1) if more else table
        new = [field for field in whole.fields if field.name not in before.schema.names]
        added = pa.schema([field for field in schema if field.name not in before.schema.names])
        number = before.number + self._mended(table, before.position, added, removed)
        if new:
            table = self._at(number)
            table.alter.add_columns(new, commit_properties=self._properties(before.position))
            number += 1
        return table if number == before.number else self._at(number)

    def _mended(self, table: Any, position: int, new: pa.Schema | None, removed: Collection[str]) -> bool:
        """Gives files statistics by which no reader skips rows wrongly. Returns whether that took a commit."""
        files = open_store(str(self._store.at(self._directory)))
        actions = mended_actions(table, files, new=new, leave=removed)
        if actions:
            properties = self._properties(position)
            table.create_write_transaction(actions, "append", table.schema(), commit_properties=properties)
        return bool(actions)

    def mend(self) -> None:
        from deltalake.exceptions import CommitFailedError

        now = self._load()
        if now is not None:
            self._expect_own()
            with suppress(CommitFailedError):  # another program has committed: the next commit does it
                self._mended(self._at(now.number), now.position, None, ())

    def _at(self, number: int) -> Any:
        # Opened anew, although `_table` may be this version: a log damaged meanwhile is noticed.
        return self._delta.DeltaTable(self._uri, number, storage_options=self._storage)

    def _properties(self, position: int) -> Any:
        # delta-rs would retry on top of another commit. It does not see that an OPTIMIZE has rewritten a removed file,
        # whose rows would then stay beside the new ones.
        return self._delta.CommitProperties(
            app_transactions=[self._delta.Transaction(_APPLICATION, position)], max_commit_retries=0
        )

    def _create(self, schema: Any, actions: list[Any], position: int) -> None:
        from deltalake.transaction import create_table_with_add_actions

        create_table_with_add_actions(
            self._uri,
            schema,
            actions,
            configuration=CONFIGURATION,
            storage_options=self._storage,
            commit_properties=self._properties(position),
        )

    def _kept(self, now: Version, keep: int) -> Iterator[Version]:
        yield now
        for number in range(now.number - 1, max(now.number - keep, -1), -1):
            try:
                version = self._load(number)
            except (self._delta.exceptions.DeltaError, OSError):
                return  # Delta removes old entries of its log
            if version is not None:
                yield version


def _bound(files: pa.Table, which: str, column: str) -> pa.Array:
    bounds = files.column(which).combine_chunks() if which in files.schema.names else None
    if bounds is None or bounds.type.get_field_index(column) < 0:
        return pa.nulls(files.num_rows)
    return pc.struct_field(bounds, [bounds.type.get_field_index(column)])
