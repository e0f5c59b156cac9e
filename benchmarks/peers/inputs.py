"""The inputs of peers: files made from one corpus, and a server with its rows."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import corpora
from benchmarks.corpora import Corpus
from benchmarks.corpora.columns import fixed_width, join
from benchmarks.peers.installations import MissingError, wal2json
from pgoutput_fast.demo.servers import Installation, Server, ServerError, find_installations

__all__ = ["Database", "Inputs"]

WIDE = (
    "id bigint PRIMARY KEY, kind smallint, quantity integer, account bigint, price numeric(12,2), ratio float8, "
    "active boolean, day date, changed timestamptz, token uuid, code varchar(20), city text, note text, remark text, "
    "doc jsonb, data bytea"
)
PGBENCH = {
    "accounts": "aid int PRIMARY KEY, bid int, abalance int, filler char(84)",
    "tellers": "tid int PRIMARY KEY, bid int, tbalance int, filler char(84)",
    "branches": "bid int PRIMARY KEY, bbalance int, filler char(84)",
    "history": "tid int, bid int, aid int, delta int, mtime timestamp, filler char(22)",
}
_SLOT = "peers"


class Database:
    """A server with the tables of the corpora. The table `wide` has its rows."""

    def __init__(self, csv: Path) -> None:
        """
        Raises:
            MissingError: if this machine has no PostgreSQL server.
        """
        self.without_wal2json = (
            "no PostgreSQL on this machine has wal2json; on Debian, install postgresql-15-wal2json or similar"
        )
        installation, settings = self._choose()
        # The server's decoding of these rows is not measured. With enough memory it does not spill to files.
        settings |= {"logical_decoding_work_mem": "1GB"} if installation.version >= 13 else {}
        self.server = Server(installation, settings)
        try:
            self.server.start()
            self._fill(csv)
        except BaseException:
            self.server.close()
            raise

    def _choose(self) -> tuple[Installation, dict[str, str | int | bool]]:
        """The newest server that has wal2json or can get it; otherwise the newest server."""
        installations = sorted(find_installations(), key=lambda each: -each.version)
        if not installations:
            raise MissingError("no PostgreSQL found: python ci/fetch_servers.py")
        for each in installations:
            try:
                directory = wal2json(each.version, each.bindir)
            except MissingError as error:
                if each.origin == "system":
                    self.without_wal2json = str(error)
            else:
                self.without_wal2json = ""
                return each, {"dynamic_library_path": f"{directory}:$libdir"} if directory else {}
        return installations[0], {}

    def _fill(self, csv: Path) -> None:
        with self._cursor() as cursor:
            cursor.execute(f"CREATE TABLE wide ({WIDE})")
            for name, columns in PGBENCH.items():
                cursor.execute(f"CREATE TABLE pgbench_{name} ({columns})")
            if not self.without_wal2json:
                cursor.execute("SELECT pg_create_logical_replication_slot(%s, 'wal2json')", (_SLOT,))
            with open(csv, "rb") as file:
                cursor.copy_expert("COPY wide FROM STDIN (FORMAT csv)", file)
            cursor.execute("VACUUM ANALYZE wide")

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[Any]:
        with contextlib.closing(self.server.connect()) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            yield cursor

    def json_lines(self, path: Path) -> None:
        """Writes the output of wal2json for the rows, in its format with one object per change, without types."""
        if self.without_wal2json:
            raise MissingError(self.without_wal2json)
        # COPY doubles quotes in values, so quote and delimiter are characters that do not occur in JSON.
        query = (
            f"COPY (SELECT data FROM pg_logical_slot_peek_changes('{_SLOT}', NULL, NULL, 'format-version', '2', "
            "'include-types', 'false')) TO STDOUT (FORMAT csv, QUOTE E'\\x01', DELIMITER E'\\x02')"
        )
        with self._cursor() as cursor, open(path, "wb") as file:
            cursor.copy_expert(query, file)

    @cached_property
    def copied_bytes(self) -> int:
        """The number of bytes of the rows in COPY (FORMAT binary)."""

        class Counter:
            total = 0

            def write(self, data: bytes) -> int:
                self.total += len(data)
                return len(data)

        counter = Counter()
        with self._cursor() as cursor:
            cursor.copy_expert("COPY wide TO STDOUT (FORMAT binary)", counter)
        return counter.total

    def close(self) -> None:
        self.server.close()


class Inputs:
    """Files of the corpora at one scale. They are made on first use; `close` removes them."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self._temporary = tempfile.TemporaryDirectory(prefix="pgoutput_fast-peers-inputs-")
        self._directory = Path(self._temporary.name)
        self._database: Database | MissingError | None = None
        self._latest: Corpus | None = None

    def __enter__(self) -> Inputs:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        if isinstance(self._database, Database):
            self._database.close()
        self._temporary.cleanup()

    def scratch(self) -> Path:
        """A new directory; `close` removes it."""
        return Path(tempfile.mkdtemp(dir=self._directory))

    def corpus(self, name: str) -> Corpus:
        """The corpus of this name. The last one is cached."""
        if self._latest is None or self._latest.name != name:
            self._latest = corpora.corpus(name, self.scale, corpora.SEED)
        return self._latest

    def payloads(self, name: str, share: float) -> pa.Array:
        """The first messages of a corpus."""
        payloads = self.corpus(name).payloads
        return payloads[: max(1, round(len(payloads) * share))]

    def rows(self, name: str, share: float) -> int:
        """The number of row changes in these messages."""
        kinds = pc.binary_slice(self.payloads(name, share), 0, 1)
        return pc.sum(pc.is_in(kinds, pa.array([b"I", b"U", b"D"], kinds.type))).as_py()

    def messages(self, name: str, share: float) -> Path:
        """A file of these messages. Every message is preceded by its length: four bytes, big-endian."""
        path = self._directory / f"{name}-{share:g}"
        if not path.exists():
            payloads = self.payloads(name, share)
            lengths = pc.binary_length(payloads).to_numpy().astype(">i4")
            headers = fixed_width(lengths.view(np.uint8).reshape(-1, 4))
            _, offsets, data = join(headers, payloads).buffers()
            end = np.frombuffer(offsets, np.int32)[len(payloads)]
            path.write_bytes(np.frombuffer(data, np.uint8)[:end])
        return path

    def arrow(self, name: str, share: float) -> Path:
        """The same messages as an Arrow file with one column and one chunk."""
        path = self._directory / f"{name}-{share:g}.arrow"
        if not path.exists():
            table = pa.table({"payload": self.payloads(name, share)})
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
        return path

    @cached_property
    def csv(self) -> Path:
        """The wide table's rows as COPY writes them."""
        path = self._directory / "wide.csv"
        path.write_bytes(corpora.csv_of(corpora.wide_cells(self.scale, corpora.SEED)))
        return path

    @cached_property
    def schema(self) -> Path:
        """The wide table's columns, without rows."""
        path = self._directory / "wide.schema"
        schema = self.corpus("wide text").tables["public.wide"].schema
        with pa.ipc.new_file(path, schema) as writer:
            writer.write_table(schema.empty_table())
        return path

    @property
    def database(self) -> Database:
        """
        Raises:
            MissingError: if this machine has no PostgreSQL server.
        """
        if self._database is None:
            try:
                self._database = Database(self.csv)
            except ServerError as error:
                self._database = MissingError(f"no server: {str(error).splitlines()[0]}")
            except MissingError as error:
                self._database = error
        if isinstance(self._database, MissingError):
            raise self._database
        return self._database

    @property
    def server(self) -> str:
        """The name of the server in use, or "no PostgreSQL"."""
        try:
            return f"PostgreSQL {self.database.server.version}"
        except MissingError:
            return "no PostgreSQL"

    @cached_property
    def json(self) -> Path:
        """
        Raises:
            MissingError: if no server on this machine has wal2json.
        """
        path = self._directory / "wide.json"
        self.database.json_lines(path)
        return path
