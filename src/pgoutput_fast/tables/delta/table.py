"""Delta tables. Needs `pip install 'deltalake>=1.6.6'`."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any
from urllib.parse import parse_qs, unquote

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.schema.options import Transactions
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.storage.paths import is_uri, open_place, redacted_uri, split_uri
from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.tables.delta.entries import LogEntries, concerns_vectors
from pgoutput_fast.tables.delta.joining import begun
from pgoutput_fast.tables.delta.log import VECTORS_FEATURE
from pgoutput_fast.tables.delta.statistics import complete, inexact, mended_actions
from pgoutput_fast.tables.delta.steps import add_columns, allow_timestamps
from pgoutput_fast.tables.files import WrittenFile
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.stream import Stream
from pgoutput_fast.tables.table import (
    Commit,
    CommitLsn,
    ConflictError,
    DataFile,
    DeletedRows,
    Joining,
    ListedFiles,
    Ordinal,
    OutcomeUnknownError,
    Table,
    TableRole,
    Version,
)
from pgoutput_fast.tables.target import FileTarget

__all__ = ["DeltaTable", "DeltaTarget", "uri_and_options"]

# Properties of new tables. For every commit, delta-rs reads all commits after the last checkpoint again. By default, it
# writes a checkpoint only after every hundredth.
_CONFIGURATION = {"delta.checkpointInterval": "10"}
_PLAIN = TableOptions()
# About so many entries stay in the log of a history: to make a commit, delta-rs lists all. Entries stay ten minutes at
# least, for programs that read the history as a stream, and thirty days, Delta's default, at most.
_HISTORY_ENTRIES, _LEAST_SECONDS, _MOST_SECONDS = 10_000, 10 * 60, 30 * 86_400

# The applications whose transactions carry an ordinal, and an LSN.
_ORDINAL, _LSN = "pgoutput_fast", "pgoutput_fast.mirror"
# Where a table has its position. Histories of earlier versions have their LSN where tables of changes have an ordinal.
_POSITIONS: dict[TableRole, tuple[str, ...]] = {
    "changes": (_ORDINAL,),
    "history": (_LSN, _ORDINAL),
    "current": (_LSN,),
}
# The applications whose transactions carry the stream: its digest, and the position of the table in it. Transactions
# stay in the log for ever, but they are numbers. The names are in the commit info, under the first name.
_STREAM = f"{_ORDINAL}.stream"
_SEQ, _LOW, _HIGH = f"{_STREAM}.seq", f"{_STREAM}.low_lsn", f"{_STREAM}.high_lsn"
_NO_STREAM = _NO_LSN = -1
# The application whose transaction tells which transactions of the stream the table has, as an index of this list.
_KIND = f"{_ORDINAL}.transactions"
_KINDS: tuple[Transactions | None, ...] = (None, "as_sent", "committed")
# The number of commits that are searched for the names of a stream.
_NEWEST = 1000
# The application whose transaction is the newest time at which a file was written whose bounds were checked.
_CHECKED = f"{_ORDINAL}.bounds"
# The features that a table may require of its readers. With others, files may have rows that are not in the table, or
# columns under other names. If delta-rs enables deletion vectors, it requires variants, too, whatever the columns are.
_FEATURES = {"timestampNtz", "v2Checkpoint"}
_CURRENT_FEATURES = {*_FEATURES, "variantType", VECTORS_FEATURE}
# What delta-rs writes between an error and its cause.
_NEXT_CAUSE = re.compile(r"\s*\n[\s↳]*(?:\x1b\[\d+m[\s↳]*)*")


class DeltaTarget(FileTarget):
    """Delta tables."""

    roles = frozenset({"changes", "history", "current"})
    package = "deltalake", "deltalake>=1.6.6"
    marks = True
    unfit = re.compile(r"%[0-9a-fA-F]{2}|[\\\x00-\x1f]")
    sign = "/_delta_log", ".json"

    def table(self, directory: str, role: TableRole) -> DeltaTable:
        return DeltaTable(self.store, directory, role, self.options)


class DeltaTable(Table):
    """A Delta table.

    Its position is in application transactions of Delta's log: an LSN is the version of `pgoutput_fast.mirror`. An
    ordinal is the version of `pgoutput_fast`; others, in the same commit, give the stream and which of its transactions
    the table has.

    Args:
        store, directory, role: as for `Table`.
        options: how to reach and write it.

    Raises:
        ImportError: if `deltalake` is not installed, or is too old.
    """

    folded = True
    rewrites_types = True

    def __init__(self, store: Store, directory: str, role: TableRole, options: TableOptions = _PLAIN) -> None:
        try:
            import deltalake
            from deltalake.transaction import RemoveAction  # noqa: F401
        except ImportError:
            raise ImportError("Delta tables need delta-rs: pip install 'deltalake>=1.6.6'") from None
        super().__init__(store, directory, role)
        self._delta = deltalake
        self._uri, of_uri = uri_and_options(str(store.at(directory)))
        self._storage = {**of_uri, **(options.storage or {})} or None
        kept = _log_retention(options.history_seconds) if role == "history" else {}
        self._configuration = _CONFIGURATION | kept
        # The newest version that was read.
        self._opened: Any = None
        self._log = LogEntries(self, partial(self._at, None), self._uri, self._storage)

    @property
    def marks(self) -> bool:  # type: ignore[override]
        return self.role == "current"

    def can_widen(self, before: pa.DataType, wide: pa.DataType) -> bool:
        return bool(wide.equals(before))  # delta-rs does not support Delta's type widening

    # ---- versions ------------------------------------------------------------------------------------------------

    def _read(self, number: int | None) -> Version | None:
        with self._errors(number):
            if number is not None:
                return self._version(self._at(number))
            if self._opened is not None:
                # Opening the table again would read its whole log.
                self._opened.update_incremental()
                if self._known is not None and self._known.number == self._opened.version():
                    return self._known
            elif self._delta.DeltaTable.is_deltatable(self._uri, storage_options=self._storage):
                self._opened = self._at(None)
                self._log.forget()
            else:
                return None
            version = self._version(self._opened)
            if version.position is None and self.role == "current":
                self._opened = None  # its owner may remove it, and the next call opens a new one
            return version

    @contextmanager
    def _errors(self, number: int | None) -> Iterator[None]:
        """Errors of readers of a version, the newest one by default."""
        try:
            yield
        except self._delta.exceptions.DeltaError as problem:
            if number is None:
                self._forget()  # the next call opens it again, in case the table was restored or removed
            # delta-rs marks some errors of a store only by this text.
            if not self.store.local and "object store" in str(problem):
                raise
            if number is not None:
                raise FileNotFoundError(f"{self} has no version {number}") from problem
            raise self.damaged(problem) from problem
        except ValueError:
            if number is None:
                self._forget()
            raise

    def _forget(self) -> None:
        self._opened = self._known = None
        self._is_known = False

    def _at(self, number: int | None) -> Any:
        return self._delta.DeltaTable(self._uri, number, storage_options=self._storage)

    def _version(self, table: Any) -> Version:
        """
        Raises:
            ValueError: if another program changed how the table must be read.
        """
        number, position = table.version(), self._position(table)
        partition_by = tuple(table.metadata().partition_columns)
        # A current table without a position is of others, which another error says.
        if self.role != "current" or position is not None:
            _check_features(self, table, partition_by)

        def files() -> pa.Table:
            with self._errors(None):
                return pa.table((table if table.version() == number else self._at(number)).get_add_actions())

        marks = VECTORS_FEATURE in (table.protocol().reader_features or ())

        def data_files(actions: pa.Table) -> list[DataFile]:
            return _data_files(actions, self._log.deleted(number) if marks else {})

        listed = ListedFiles(files, data_files)

        def bounds(column: str) -> tuple[pa.Array, pa.Array]:
            return _bound(listed.listing, "min", column), _bound(listed.listing, "max", column)

        schema = stored_schema(pa.schema(table.schema().to_arrow()), "table")
        return Version(number, position, schema, listed, bounds, partition_by)

    def _position(self, table: Any) -> Ordinal | CommitLsn | None:
        found = [table.transaction_version(name) for name in _POSITIONS[self.role]]
        # An earlier version that continues a history advances only its own place.
        number = max((each for each in found if each is not None), default=None)
        if number is None:
            return None
        if self.role != "changes":
            return CommitLsn(number)
        digest, kind = table.transaction_version(_STREAM), table.transaction_version(_KIND)
        stream = None
        if digest is not None and digest != _NO_STREAM:
            seq, *lsns = map(table.transaction_version, (_SEQ, _LOW, _HIGH))
            stream = Stream(digest, seq, *(None if lsn == _NO_LSN else lsn for lsn in lsns))
        return Ordinal(number, stream, None if kind is None else _KINDS[kind])

    def named(self, stream: Stream) -> Stream:
        if self._opened is None and self.version() is None:
            return stream
        for commit in self._opened.history(_NEWEST):
            if _STREAM in commit:
                found = Stream.from_json(commit[_STREAM])
                if found.digest == stream.digest:
                    return replace(stream, names=found.names)
        return stream

    # ---- commits -------------------------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        try:
            super().commit(commit)
        except FileNotFoundError:
            raise  # a file of the version is gone, so this commit was not made
        except (OSError, self._delta.exceptions.DeltaError) as problem:
            if self.store.local:
                raise
            raise OutcomeUnknownError(self, OSError(_one_line(problem))) from problem

    def _commit(self, commit: Commit) -> None:
        from deltalake.exceptions import CommitFailedError

        base = commit.base
        number = None if base is None else base.number
        try:
            whole = self._delta.Schema.from_arrow(stored_schema(commit.schema, "table"))
            applied, info = _applications(commit, self._opened if self.role == "history" else None)
            properties = _commit_properties(applied, info, alone=bool(commit.removed))
            if base is None:
                made = {"configuration": self._configuration, "commit_properties": properties}
                return _create(self._uri, self._storage, whole, commit, self._actions(commit), made)
            table = self._prepared(commit, base, whole)
            number = table.version()
            if concerns_vectors(commit):
                added = [_entry_of(each) for each in self._added(commit)]
                return self._log.commit(commit, number, added, applied, info)
            table.create_write_transaction(
                self._actions(commit),
                "overwrite" if commit.replaces else "append",
                whole if commit.replaces else table.schema(),
                list(commit.partition_by if commit.replaces else base.partition_by),
                commit_properties=properties,
            )
        except CommitFailedError as problem:
            newest = self.version()
            if (newest and newest.number) == number:
                raise OSError(f"{self} cannot be written: {problem}") from problem
            raise ConflictError(self) from problem
        except self._delta.exceptions.DeltaError as problem:
            self._forget()
            newest = self.version()  # this says whether the table is damaged
            if newest is None and base is not None:
                raise self.damaged(problem, remove=False) from problem
            if newest is not None and base is None:
                raise ConflictError(self) from problem
            raise
        except Exception as problem:
            if type(problem) is not Exception:
                raise
            raise _columns_error(problem, str(self)) from problem

    def _actions(self, commit: Commit) -> list[Any]:
        from deltalake.transaction import RemoveAction

        actions: list[Any] = self._added(commit)
        if commit.base is not None and not commit.replaces:
            now = int(time.time() * 1000)
            removed = (
                [file for file in commit.base.files if file.name in commit.removed] if commit.removed else ()
            )
            actions += [RemoveAction(file.name, commit.data_change, now, file.nbytes, {}) for file in removed]
        return actions

    def _added(self, commit: Commit) -> list[Any]:
        return [_add_action(each, commit.partition_by, changes=commit.data_change) for each in commit.added]

    def _prepared(self, commit: Commit, base: Version, whole: Any) -> Any:
        """The table, prepared for a commit of this schema by commits of its own, without rows.

        Those have the position of the base. So they conflict with another writer of positions.

        If the rows are replaced, so are the columns. But a table that had no timestamps without a time zone may lack
        the feature that they need.
        """
        table = self._opened
        # If files are removed, a log that was damaged meanwhile must be noticed.
        if table is None or commit.removed or commit.deleted or table.version() != base.number:
            table = self._at(base.number)
        alone = bool(commit.removed or commit.deleted)
        step = _commit_properties(_step(base), None, alone=alone)
        newest = partial(self._newest_at, base.position)
        if commit.removed == "all":
            return allow_timestamps(table, whole, step, newest)
        added = pa.schema([field for field in commit.schema if field.name not in base.schema.names])
        if self._mended(table, base, stored_schema(added, "table"), commit.removed):
            table = self._at(base.number + 1)
        new = [field for field in whole.fields if field.name not in base.schema.names]
        return add_columns(table, new, step, newest) if new else table

    def _newest_at(self, position: Ordinal | CommitLsn | None) -> Any:
        """The newest version, opened. None if it has another position."""
        table = self._at(None)
        return table if self._position(table) == position else None

    def _mended(
        self,
        table: Any,
        version: Version,
        new: pa.Schema | None = None,
        leave: Collection[str] = (),
        *,
        check: bool = False,
    ) -> bool:
        """Gives files statistics by which no reader skips rows wrongly. Returns whether that took a commit.

        Earlier versions of this package, and other programs, write statistics by which readers do skip rows. If another
        program commits meanwhile, the next call mends them.

        Args:
            table: the version, opened.
            version: the same.
            new: columns that will be added next.
            leave: names of files that will be removed next.
            check: whether to check bounds that only look exact. Each file is read for this at most once.
        """
        assert isinstance(version.files, ListedFiles)
        files, step = version.files.listing, _step(version)
        suspect: Collection[str] = ()
        if check:
            before = table.transaction_version(_CHECKED)
            suspect, newest = inexact(version.schema, files, -1 if before is None else before)
            step |= {_CHECKED: newest} if suspect else {}
        actions = mended_actions(table, self._directory, files, new=new, leave=leave, suspect=suspect)
        return bool(actions) and self._rewritten(table, version, actions, step, version.names)

    def _rewritten(
        self,
        table: Any,
        version: Version,
        actions: Sequence[Any],
        step: dict[str, int],
        names: Collection[str],
    ) -> bool:
        """Commits actions that keep the rows and the position. Returns whether no other commit was in the way.

        Args:
            table: the version, opened.
            version: the same.
            actions: the actions.
            step: the application transactions of the commit.
            names: the names of all files after it.
        """
        if any(file.deleted is not None for file in version.files):
            statistics = {each.path.replace("%", "%25"): each.stats for each in actions}
            return self._log.add_again(version.number, statistics, step)
        # Without retries: one on top of another commit could bring back a file that an OPTIMIZE has removed.
        properties, columns = _commit_properties(step, None, alone=True), list(version.partition_by)
        try:
            table.create_write_transaction(
                actions, "append", table.schema(), columns, commit_properties=properties
            )
        except self._delta.exceptions.CommitFailedError:
            return self._is_own_step(version, names)
        return True

    def _is_own_step(self, base: Version, names: Collection[str]) -> bool:
        """Whether the commit after a version has these files, and kept its position.

        If the answer of a store was lost, delta-rs retries, and meets its own commit.
        """
        next_table = self._at(None)
        is_next = next_table.version() == base.number + 1
        return is_next and _names_of(next_table) == set(names) and self._position(next_table) == base.position

    @cached_property
    def _directory(self) -> Store:
        return open_store(str(self.store.at(self.directory)))

    # ---- upkeep --------------------------------------------------------------------------------------------------

    def fix_statistics(self) -> None:
        version = self.known
        if version is not None:
            self._is_known = not self._mended(self._opened, version, check=True)

    def clean(self, kept: Collection[str], expired: float) -> int:
        return self._log.clean(kept, expired)

    def begin_joining(self) -> Joining | None:
        return None if (version := self.version()) is None else begun(self.store, self.directory, version)

    def end_joining(self, joining: Joining, within: float | None = None) -> None:
        """As `Table.end_joining`. Removes files that no version of the last week has."""
        version = self.version()
        stay = version is not None and version.names.issuperset(file.name for file in joining.files)
        try:
            written = joining.work.result(within) or []
        except FileNotFoundError:
            if stay:
                raise
            return
        if version is None or not stay or not written:
            _remove(self, written)
        elif not self._is_joined(version, joining.files, written):
            # If an answer was lost, the next version has the files, whatever came after it. Without a next version,
            # nobody knows whether they will be in it: then they stay.
            with suppress(self._delta.exceptions.DeltaError):
                following = _names_of(self._at(version.number + 1))
                _remove(self, [each for each in written if each.name not in following])
        if self.version() is not None:
            with suppress(self._delta.exceptions.CommitFailedError):  # another process does the same
                self._opened.vacuum(dry_run=False)
        self._is_known = False

    def _is_joined(self, version: Version, files: Sequence[DataFile], written: Sequence[WrittenFile]) -> bool:
        """Commits joined files with their exact bounds. Returns whether no other commit was in the way."""
        names = version.names - {each.name for each in files} | {each.name for each in written}
        return self._rewritten(self._opened, version, _joined(files, written), _step(version), names)


def _joined(files: Sequence[DataFile], written: Sequence[WrittenFile]) -> list[Any]:
    """The actions that put joined files in the place of others."""
    from deltalake.transaction import RemoveAction

    now = int(time.time() * 1000)
    added = [_add_action(each, changes=False) for each in written]
    return [*added, *(RemoveAction(each.name, False, now, each.nbytes, {}) for each in files)]


def _remove(table: Table, files: Iterable[WrittenFile]) -> None:
    for each in files:
        table.store.remove(f"{table.directory}/{each.name}")


def _check_features(named: Table, table: Any, partition_by: tuple[str, ...]) -> None:
    """Checks that this package knows how a table must be read.

    Args:
        named: the table.
        table: the version, opened.
        partition_by: its partition columns.

    Raises:
        ValueError: if another program changed that.
    """
    protocol = table.protocol()
    features = set(protocol.reader_features or ())
    marks = named.role == "current" and VECTORS_FEATURE in features
    unknown = features - (_CURRENT_FEATURES if marks else _FEATURES)
    unknown |= {"columnMapping"} if protocol.min_reader_version == 2 else set()
    unknown |= {"partition columns"} if partition_by and named.role != "changes" else set()
    if unknown:
        raise ValueError(
            f"{named} was changed by something else: it has {' and '.join(sorted(unknown))}, which this package "
            f"does not know. R{named.remove[1:]}, and {named.again}"
        )


def _names_of(table: Any) -> set[str]:
    return set(pa.table(table.get_add_actions()).column("path").to_pylist())


def _create(
    uri: str,
    storage: dict[str, str] | None,
    schema: Any,
    commit: Commit,
    actions: list[Any],
    made: dict[str, Any],
) -> None:
    """Creates a table with its first files.

    Args:
        made: the configuration, and the properties of the commit.
    """
    from deltalake.transaction import create_table_with_add_actions

    partition_by = list(commit.partition_by)
    create_table_with_add_actions(
        uri, schema, actions, mode="error", partition_by=partition_by, storage_options=storage, **made
    )


def _log_retention(seconds: float) -> dict[str, str]:
    """The property for how long entries of a log stay.

    Args:
        seconds: about how many are between two entries.

    >>> _log_retention(0.1), _log_retention(10)
    ({'delta.logRetentionDuration': 'interval 1000 seconds'}, {'delta.logRetentionDuration': 'interval 100000 seconds'})
    """
    kept = min(max(round(_HISTORY_ENTRIES * seconds), _LEAST_SECONDS), _MOST_SECONDS)
    return {"delta.logRetentionDuration": f"interval {kept} seconds"}


def _one_line(problem: BaseException) -> str:
    """The message of an error in one line. delta-rs has a line for each cause."""
    return _NEXT_CAUSE.sub(": ", str(problem).strip())


def _data_files(actions: pa.Table, deleted: Mapping[str, DeletedRows]) -> list[DataFile]:
    """The files of a version.

    Raises:
        ValueError: if a file with marked rows is unknown to delta-rs, or is in the table twice.
    """
    paths, rows, sizes = (actions.column(each).to_pylist() for each in ("path", "num_records", "size_bytes"))
    files = [DataFile(*each, deleted.get(each[0])) for each in zip(paths, rows, sizes, strict=True)]
    if deleted and not (deleted.keys() <= set(paths) and len(set(paths)) == len(paths)):
        raise ValueError("the log of a Delta table has a deletion vector without its file")
    return files


def _bound(actions: pa.Table, which: str, column: str) -> pa.Array:
    bounds = actions.column(which).combine_chunks() if which in actions.schema.names else None
    if bounds is None or bounds.type.get_field_index(column) < 0:
        return pa.nulls(actions.num_rows)
    return pc.struct_field(bounds, [bounds.type.get_field_index(column)])


def _applications(commit: Commit, history: Any) -> tuple[dict[str, int], dict[str, str] | None]:
    """The application transactions of a commit, with its position, and more of its commit info.

    Args:
        commit: the commit.
        history: the table, opened, if it is a history.
    """
    base = None if commit.base is None else commit.base.position
    applied, info = _applied(commit.position, base if commit.replaces else None)
    # An earlier version of this package that continues the table must not append changes again.
    if history and history.transaction_version(_ORDINAL):
        applied[_ORDINAL] = applied[_LSN]
    return applied, info


def _commit_properties(applied: dict[str, int], info: dict[str, str] | None, *, alone: bool) -> Any:
    """The properties of a commit of delta-rs, which does not retry it if it is `alone`."""
    from deltalake import CommitProperties, Transaction

    # delta-rs would retry on top of another commit. It does not see that an OPTIMIZE has rewritten a removed file,
    # whose rows would then stay beside the new ones.
    more = {"max_commit_retries": 0} if alone else {}
    transactions = [Transaction(*each) for each in applied.items()]
    return CommitProperties(custom_metadata=info, app_transactions=transactions, **more)


def _step(base: Version) -> dict[str, int]:
    """The application transactions of a commit that keeps the position."""
    position = base.position
    if isinstance(position, Ordinal):
        position = Ordinal(position.seq)
    return {} if position is None else _applied(position)[0]


def _applied(
    position: Ordinal | CommitLsn, replaced: Ordinal | CommitLsn | None = None
) -> tuple[dict[str, int], dict[str, str] | None]:
    """The application transactions of a position, and what the commit info has of it.

    Args:
        position: the position.
        replaced: the position of the rows that are replaced, whose stream must not stay.
    """
    if isinstance(position, CommitLsn):
        return {_LSN: position.lsn}, None
    before = replaced if isinstance(replaced, Ordinal) else Ordinal(0)
    applied, info, stream, kind = {_ORDINAL: position.seq}, None, position.stream, position.transactions
    if kind is not None or before.transactions is not None:
        applied[_KIND] = _KINDS.index(kind)
    if stream is not None:
        lsns = (_NO_LSN if lsn is None else lsn for lsn in (stream.low_lsn, stream.high_lsn))
        applied |= zip((_STREAM, _SEQ, _LOW, _HIGH), (stream.digest, stream.seq, *lsns), strict=True)
        info = {_STREAM: stream.to_json()}
    elif before.stream is not None:
        applied[_STREAM] = _NO_STREAM
    return applied, info


def _columns_error(problem: Exception, place: str) -> ValueError:
    """The error for columns that no table can have. delta-rs raises a plain Exception for them."""
    # Further lines are a trace of delta-rs.
    return ValueError(f"{place} cannot have these columns: {str(problem).partition(chr(10))[0]}")


def uri_and_options(place: str) -> tuple[str, dict[str, str]]:
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
    return redacted_uri(uri.geturl()), said


def _entry_of(add: Any) -> dict[str, Any]:
    """The action of the log that `create_write_transaction` writes for one of delta-rs."""
    return {
        "add": {
            "path": add.path.replace("%", "%25"),
            "partitionValues": add.partition_values,
            "size": add.size,
            "modificationTime": add.modification_time,
            "dataChange": add.data_change,
            "stats": add.stats,
        }
    }


def _add_action(file: WrittenFile, partition_by: tuple[str, ...] = (), *, changes: bool = True) -> Any:
    """The action that adds a file to Delta's log. `changes` says whether its rows are new in the table."""
    from deltalake.transaction import AddAction

    return AddAction(
        path=file.name,
        size=file.nbytes,
        partition_values=dict(zip(partition_by, parsed_json(file.partition), strict=True)),
        modification_time=int(time.time() * 1000),
        data_change=changes,
        stats=complete(file.statistics),
    )
