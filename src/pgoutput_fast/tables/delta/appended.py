"""Delta tables: existing files become a version of the table. Needs `pip install deltalake`."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any
from urllib.parse import parse_qs, unquote

import pyarrow as pa

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.schema.options import Transactions
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.storage.parquet import SETTINGS
from pgoutput_fast.storage.paths import is_uri, open_place, shown, split_uri
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.delta.statistics import complete, mended_actions
from pgoutput_fast.tables.files import WrittenFile
from pgoutput_fast.tables.stream import Stream
from pgoutput_fast.tables.target import Mode, TableTarget, fitted_types

__all__ = [
    "CONFIGURATION",
    "DeltaTarget",
    "add_action",
    "allow_timestamps",
    "columns_error",
    "reached",
]

# Properties of new tables. For every commit, delta-rs reads all commits after the last checkpoint again. By default, it
# writes a checkpoint only after every hundredth.
CONFIGURATION = {"delta.checkpointInterval": "10"}

# The application whose transactions carry the position.
_APPLICATION = "pgoutput_fast"
# The applications whose transactions carry the stream: its digest, and the position of the table in it. Transactions
# stay in the log for ever, but they are numbers. The names are in the commit info, under the first name.
_STREAM = "pgoutput_fast.stream"
_SEQ, _LOW, _HIGH = f"{_STREAM}.seq", f"{_STREAM}.low_lsn", f"{_STREAM}.high_lsn"
_NO_STREAM = _NO_LSN = -1
# The application whose transaction tells which transactions of the stream the table has, as an index of this list.
_KIND = f"{_APPLICATION}.transactions"
_KINDS: tuple[Transactions | None, ...] = (None, "as_sent", "committed")
# The number of commits that are searched for the names of a stream.
_NEWEST = 1000
# Size of joined files, and rows of their row groups. delta-rs has both in memory for every file that it writes.
_JOINED_BYTES, _JOINED_ROWS = 64 << 20, 1 << 17


class DeltaTarget(TableTarget):
    """A Delta table.

    The position is the version of the application transaction `pgoutput_fast` in Delta's log. Transactions of other
    names, in the same commit, give the stream and which of its transactions the table has.

    Args:
        place: path or URI of the table.
        storage_options: options of delta-rs for the store, besides the URI.

    Raises:
        ImportError: if `deltalake` is not installed.
    """

    hidden = False  # readers read only files in the log

    def __init__(self, place: str, storage_options: Mapping[str, str] | None = None) -> None:
        try:
            import deltalake
        except ImportError:
            raise ImportError("format='delta' needs delta-rs: pip install deltalake") from None
        self._delta = deltalake
        self._store = open_store(place)
        self._place, said = reached(place)
        self._storage = {**said, **(storage_options or {})}
        # (table object, its version, its columns).
        self._known: tuple[Any, int, pa.Schema] | None = None

    @cached_property
    def _table(self) -> Any:
        """The current table; None if there is none."""
        if not self._delta.DeltaTable.is_deltatable(self._place, storage_options=self._storage or None):
            return None
        return self._delta.DeltaTable(self._place, storage_options=self._storage or None)

    def exists(self) -> bool:
        return self._table is not None

    def position(self) -> int | None:
        return None if self._table is None else self._table.transaction_version(_APPLICATION)

    def stream(self) -> Stream | None:
        if self._table is None:
            return None
        digest, seq, *lsns = map(self._table.transaction_version, (_STREAM, _SEQ, _LOW, _HIGH))
        if digest is None or digest == _NO_STREAM:
            return None
        return Stream(digest, seq, *(None if lsn == _NO_LSN else lsn for lsn in lsns))

    def transactions(self) -> Transactions | None:
        found = None if self._table is None else self._table.transaction_version(_KIND)
        return None if found is None else _KINDS[found]

    def named(self, stream: Stream) -> Stream:
        for commit in self._table.history(_NEWEST):
            if _STREAM in commit:
                found = Stream.from_json(commit[_STREAM])
                if found.digest == stream.digest:
                    return replace(stream, names=found.names)
        return stream

    def _properties(
        self, position: int, stream: Stream | None, kind: Transactions | None, replaced: bool
    ) -> Any:
        """The properties of a commit that sets the position, the stream and which transactions the table has."""
        carried = {_APPLICATION: position}
        if kind is not None or (replaced and self.transactions() is not None):
            carried[_KIND] = _KINDS.index(kind)
        said = None
        if stream is not None:
            lsns = (_NO_LSN if lsn is None else lsn for lsn in (stream.low_lsn, stream.high_lsn))
            carried |= zip((_STREAM, _SEQ, _LOW, _HIGH), (stream.digest, stream.seq, *lsns), strict=True)
            said = {_STREAM: stream.to_json()}
        elif replaced and self.stream() is not None:
            carried[_STREAM] = _NO_STREAM
        applied = [self._delta.Transaction(*each) for each in carried.items()]
        return self._delta.CommitProperties(custom_metadata=said, app_transactions=applied)

    def partition_by(self) -> tuple[str, ...]:
        return () if self._table is None else tuple(self._table.metadata().partition_columns)

    def fitted(self, schema: pa.Schema) -> pa.Schema:
        if self._table is None:
            return schema
        # delta-rs does not support Delta's type widening.
        place = f"the Delta table {shown(self._place)}"
        return fitted_types(self.columns(), stored_schema(schema, "table"), place, lambda *_: False)

    def column_names(self) -> list[str]:
        return list(self.columns().names)

    def columns(self) -> pa.Schema:
        """The columns of the table; none if there is no table."""
        table = self._table
        if table is None:
            return pa.schema([])
        if self._known is None or self._known[0] is not table or self._known[1] != table.version():
            self._known = table, table.version(), stored_schema(pa.schema(table.schema().to_arrow()), "table")
        return self._known[2]

    def commit(
        self,
        files: Sequence[WrittenFile],
        position: int,
        schema: pa.Schema,
        mode: Mode,
        partition_by: tuple[str, ...] = (),
        stream: Stream | None = None,
        transactions: Transactions | None = None,
    ) -> None:
        if mode != "overwrite":
            schema = self.fitted(schema)
        actions = [add_action(each, partition_by) for each in files]
        properties = self._properties(position, stream, transactions, mode == "overwrite")
        whole = self._delta.Schema.from_arrow(stored_schema(schema, "table"))
        if self._table is None:
            from deltalake.transaction import create_table_with_add_actions

            create_table_with_add_actions(
                self._place,
                whole,
                actions,
                mode="error",
                partition_by=list(partition_by),
                configuration=CONFIGURATION,
                storage_options=self._storage or None,
                commit_properties=properties,
            )
        else:
            if mode != "overwrite":
                self.mend(
                    new=pa.schema([field for field in schema if field.name not in self.columns().names])
                )
                self._add_columns(whole)
                whole = self._table.schema()
            elif allow_timestamps(self._table, whole):
                self.__dict__.pop("_table", None)
            self._table.create_write_transaction(
                actions,
                "overwrite" if mode == "overwrite" else "append",
                whole,
                list(partition_by),
                commit_properties=properties,
            )
            return self._follow()
        self.__dict__.pop("_table", None)

    def _follow(self) -> None:
        """Updates the table object after a commit. Opening the table again would read its whole log."""
        try:
            self._table.update_incremental()
        except Exception:  # the commit is done; the next use of the table reports the problem
            self.__dict__.pop("_table", None)

    def mend(self, *, new: pa.Schema | None = None, suspect: Collection[str] = ()) -> None:
        """Gives files statistics by which no reader skips rows wrongly. The rows and the position stay.

        Earlier versions of this package, and other programs, write statistics by which readers do skip rows. If another
        program commits meanwhile, the next call mends them.

        Args:
            new: columns that will be added next.
            suspect: names of files whose statistics are not exact.
        """
        table = self._table
        if table is None:
            return
        actions = mended_actions(table, self._store, new=new, suspect=suspect)
        if actions:
            # A retry on top of another commit could bring back a file that an OPTIMIZE has removed.
            properties = self._delta.CommitProperties(max_commit_retries=0)
            with suppress(self._delta.exceptions.CommitFailedError):
                table.create_write_transaction(
                    actions,
                    "append",
                    table.schema(),
                    list(table.metadata().partition_columns),
                    commit_properties=properties,
                )
            self.__dict__.pop("_table", None)

    def _add_columns(self, schema: Any) -> None:
        known = {field.name for field in self._table.schema().fields}
        new = [field for field in schema.fields if field.name not in known]
        if new:
            try:
                self._table.alter.add_columns(new)
            except self._delta.exceptions.CommitFailedError:
                # If the answer of a store was lost, delta-rs retries, and meets its own commit.
                self.__dict__.pop("_table", None)
                if not {field.name for field in new} <= {field.name for field in self._table.schema().fields}:
                    raise
            self.__dict__.pop("_table", None)

    def compact(self) -> None:
        """Joins small files. The rows and the position stay. Removes files that no version of the last week has."""
        if self._table is not None:
            # By default, delta-rs compresses as much as it can, which takes almost three times the CPU time.
            writer = self._delta.WriterProperties(
                compression=SETTINGS["compression"].upper(),
                compression_level=SETTINGS["compression_level"],
                dictionary_page_size_limit=SETTINGS["dictionary_pagesize_limit"],
                max_row_group_size=_JOINED_ROWS,
                # As in `rows_writer`: its bounds ignore NaN.
                column_properties={
                    field.name: self._delta.ColumnProperties(statistics_enabled="NONE")
                    for field in self.columns()
                    if pa.types.is_floating(field.type)
                },
            )
            before = self._paths()
            self._table.optimize.compact(
                target_size=_JOINED_BYTES, max_concurrent_tasks=1, writer_properties=writer
            )
            # delta-rs rounds bounds of decimals.
            self.mend(suspect=self._paths() - before)
            self._table.vacuum(dry_run=False)
            self.__dict__.pop("_table", None)

    def count(self) -> int:
        """The number of rows, from the log."""
        return 0 if self._table is None else int(self._table.count())

    def _paths(self) -> set[str]:
        return set(pa.table(self._table.get_add_actions()).column("path").to_pylist())

    def committed(self) -> Collection[str]:
        if self._table is None:
            return ()
        return {uri.rpartition("/")[2] for uri in self._table.file_uris()}


def allow_timestamps(table: Any, schema: Any, properties: Any = None) -> bool:
    """Enables timestamps without a time zone in a table, before its columns are replaced by some that have them.

    `alter.add_columns` does so by itself, but not an overwrite.

    Args:
        table: a `DeltaTable`.
        schema: the new columns, a schema of delta-rs.
        properties: of the commit.

    Returns:
        Whether there was a commit.
    """
    from deltalake import TableFeatures

    there = table.protocol().reader_features or ()
    if "timestampNtz" in there or "timestamp_ntz" not in schema.to_json():
        return False
    feature = TableFeatures.TimestampWithoutTimezone
    table.alter.add_feature(feature, allow_protocol_versions_increase=True, commit_properties=properties)
    return True


def columns_error(problem: Exception, place: str) -> ValueError:
    """The error for columns that no table can have. delta-rs raises a plain Exception for them."""
    # Further lines are a trace of delta-rs.
    return ValueError(f"{place} cannot have these columns: {str(problem).partition(chr(10))[0]}")


def reached(place: str) -> tuple[str, dict[str, str]]:
    """The URI of a table without credentials and query, and their content as options of delta-rs.

    So the same URI configures S3 for pyarrow and delta-rs. For other stores, both accept the same URIs.
    """
    if not is_uri(place) or split_uri(place).scheme != "s3":
        return place, {}
    uri = split_uri(place)
    query = {name: values[-1] for name, values in parse_qs(uri.query).items()}
    said = {"AWS_REGION": str(open_place(place)[0].region)}
    if uri.username is not None and uri.password is not None:
        said |= {"AWS_ACCESS_KEY_ID": unquote(uri.username), "AWS_SECRET_ACCESS_KEY": unquote(uri.password)}
    if "endpoint_override" in query:
        scheme = query.get("scheme", "https")
        said |= {"AWS_ENDPOINT_URL": f"{scheme}://{query['endpoint_override']}"}
        said |= {"AWS_ALLOW_HTTP": "true"} if scheme == "http" else {}
    if query.get("force_virtual_addressing") == "true":
        said["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "true"
    return shown(uri.geturl()), said


def add_action(file: WrittenFile, partition_by: tuple[str, ...] = ()) -> Any:
    """The action that adds a file to Delta's log."""
    from deltalake.transaction import AddAction

    return AddAction(
        path=file.name,
        size=file.nbytes,
        partition_values=dict(zip(partition_by, parsed_json(file.partition), strict=True)),
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=complete(file.statistics),
    )
