"""Tables in a lake of DuckLake. Needs `pip install 'pgoutput_fast[ducklake]'`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgoutput_fast.schema.types import walk_type
from pgoutput_fast.storage.fsync import fsync, make_directory
from pgoutput_fast.tables.duckdb import DuckDBCurrent, DuckDBTarget, State

__all__ = ["DuckLakeCurrent", "DuckLakeTarget"]

_PACKAGE = "duckdb_extension_ducklake", "duckdb_extension_ducklake==1.5.5"
# The name of the lake in a connection.
_LAKE = "ducklake"
# Columns of the tables in which DuckLake keeps small changes.
_RESERVED = re.compile("row_id|begin_snapshot|end_snapshot|_ducklake_internal_.*", re.IGNORECASE)


class DuckLakeTarget(DuckDBTarget):
    """A lake: a file beside the directory of the target is its catalog, and a directory beside it has its data."""

    package = _PACKAGE

    @classmethod
    def check_package(cls, user: str) -> None:
        super().check_package(user)
        _extension()

    def open(self, place: str, name: str, schema: str) -> DuckLakeCurrent:
        return DuckLakeCurrent(f"{place}.ducklake", name, schema)


class DuckLakeCurrent(DuckDBCurrent):
    """A table of a lake whose catalog is a DuckDB file.

    Its data files are in the directory with the name of the catalog and `.files`. A transaction is a snapshot of the
    lake. So all tables of the lake share the numbers of versions: the version of a table is the snapshot that last
    set its position. `AT (VERSION => n)` reads it, as long as its snapshot, or a later one with the same rows, exists.

    As with a database, only one process at a time has the catalog open.

    Args:
        database: the path of the catalog. It is created if it does not exist.
        name, schema: as for `DuckDBCurrent`.

    Raises:
        ImportError: if the extension is not installed, or if it is for another version of `duckdb`.
    """

    versions = "target"
    # Files and checkpoints of DuckDB 1.5 have one zero in place of both (duckdb/duckdb#25781 and #25580).
    signed_zeros = False
    _version = "snapshot_id"

    def __init__(self, database: str | os.PathLike[str], name: str, schema: str = "main") -> None:
        self._extension = _extension()
        super().__init__(database, name, schema)
        self._data = Path(f"{os.fspath(self._path.absolute())}.files")

    @property
    def _busy(self) -> tuple[type[Exception], ...]:
        return self._duckdb.IOException, self._duckdb.BinderException

    def _connect(self) -> Any:
        path = os.fspath(self._path.absolute())
        # To check the signature takes 0.1 s, for a file that is as trustworthy as other code of installed packages.
        # Connections to the same name share one database, and with it the catalog.
        connection = self._duckdb.connect(f":memory:{path}", config={"allow_unsigned_extensions": "true"})
        try:
            connection.execute(f"LOAD {_literal(self._extension)}")
            # The path of the data is in the catalog, but the lake may have been moved.
            connection.execute(
                f"ATTACH IF NOT EXISTS {_literal(f'ducklake:{path}')} AS {_LAKE} "
                f"(DATA_PATH {_literal(f'{self._data}/')}, OVERRIDE_DATA_PATH true)"
            )
            connection.execute(f"USE {_LAKE}")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def committed(self, connection: Any) -> Iterator[None]:
        """A transaction that makes its data files durable before the catalog has them. DuckLake does not."""
        if self.is_together:
            yield
            return
        before = self._files()
        with super().committed(connection):
            yield
            new = self._files() - before
            for file in new:
                fsync(file)
            for directory in {file.parent for file in new}:
                make_directory(directory)
                fsync(directory)

    def make(self, connection: Any, schema: pa.Schema) -> None:
        self._check_names(schema.names)
        super().make(connection, schema)
        self._write_maps_to_files(connection, schema)

    def alter(self, connection: Any, there: pa.Schema, schema: pa.Schema) -> None:
        self._check_names(schema.names)
        super().alter(connection, there, schema)
        self._write_maps_to_files(connection, schema)

    def rename(self, connection: Any, renamed: Mapping[str, str]) -> None:
        self._check_names(renamed)
        super().rename(connection, renamed)

    def _write_maps_to_files(self, connection: Any, schema: pa.Schema) -> None:
        """Keeps small changes out of the catalog of this lake if a column is a map, or has one.

        Statistics of such columns are missing there, and DuckLake 1.5.5 ends the process when it merges them. A table
        that is not committed yet cannot have the setting.
        """
        if any(pa.types.is_map(kind) for field in schema for _, kind in walk_type("", field.type)):
            connection.execute(f"CALL {_LAKE}.set_option('data_inlining_row_limit', 0)")

    def _check_names(self, names: Iterable[str]) -> None:
        """Raises a ValueError for a name that DuckLake needs itself."""
        reserved = [name for name in names if _RESERVED.fullmatch(name)]
        if reserved:
            raise ValueError(
                f"{self} cannot have the column {reserved[0]!r}, which DuckLake reserves: rename it on the server, or "
                "use another format"
            )

    def _files(self) -> set[Path]:
        return {Path(directory, name) for directory, _, names in os.walk(self._data) for name in names}

    def vacuum(self, keep: int = 1) -> int:
        """Removes the snapshots of the lake that are older, and files that no snapshot needs; joins the table's files.

        Args:
            keep: how many snapshots stay, counted back from the version of the table.

        Returns:
            How many files it removed.

        Raises:
            ValueError: if `keep` is less than 1.
        """
        if keep < 1:
            raise ValueError("keep must be at least 1: the current version stays")
        now, before = self._state(), self._files()
        if now is None:
            return 0
        schema, name = map(_literal, self._names)
        with self.opened() as connection:
            for call in (
                f"ducklake_flush_inlined_data('{_LAKE}', schema_name => {schema}, table_name => {name})",
                f"ducklake_merge_adjacent_files('{_LAKE}', {name}, schema => {schema})",
                # This changes the `snapshot_id` of rows: not in the table of positions.
                f"ducklake_rewrite_data_files('{_LAKE}', {name}, schema => {schema})",
            ):
                with self.committed(connection):
                    connection.execute(f"CALL {call}").fetchall()
            query = f"SELECT snapshot_id FROM ducklake_snapshots('{_LAKE}') WHERE snapshot_id <= {now.version - keep}"
            old = [number for (number,) in connection.execute(query).fetchall()]
            for call in (
                *([f"ducklake_expire_snapshots('{_LAKE}', versions => {old})"] if old else []),
                f"ducklake_cleanup_old_files('{_LAKE}', cleanup_all => true)",
                # No other process has the catalog open, and one thread writes: nobody is writing these files.
                f"ducklake_delete_orphaned_files('{_LAKE}', cleanup_all => true)",
            ):
                connection.execute(f"SELECT count(*) FROM {call}").fetchall()
        return len(before - self._files())

    def _expected(self, connection: Any, version: int | None) -> tuple[State, str]:
        if version is None:
            return super()._expected(connection, None)
        # Snapshots between this one and the next commit to the table have the same rows of it.
        query = (
            f"SELECT min(snapshot_id) FROM ducklake_snapshots('{_LAKE}') WHERE snapshot_id >= {int(version)}"
        )
        ((snapshot,),) = connection.execute(query).fetchall()
        state, at = None, f" AT (VERSION => {snapshot})"
        if snapshot is not None:
            # The lake, or the table, may be younger.
            with suppress(self._duckdb.CatalogException, ValueError):
                state = self.state_in(connection, at)
        if state is None or state.version > version:
            raise FileNotFoundError(f"{self} has no version {version}")
        return state, at


def _extension() -> Path:
    """The file of the extension.

    Raises:
        ImportError: if it is not installed, or if it is for another version of `duckdb`.
    """
    try:
        import duckdb

        (directory,) = import_module(_PACKAGE[0]).__path__
    except ImportError:
        raise ImportError(
            "a mirror in DuckLake needs the extension: pip install 'pgoutput_fast[ducklake]'"
        ) from None
    extensions = Path(directory, "extensions")
    file = extensions / f"v{duckdb.__version__}" / "ducklake.duckdb_extension"
    if not file.exists():
        versions = ", ".join(sorted(each.name[1:] for each in extensions.iterdir()))
        raise ImportError(
            f"the extension ducklake is for duckdb {versions}, and not for {duckdb.__version__}: "
            "pip install 'pgoutput_fast[ducklake]', without the extra duckdb"
        )
    return file


def _literal(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"
