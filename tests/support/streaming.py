"""Sessions that write at the same time, a slot that streams their transactions, and a walsender for this slot."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg2.extras

from support import pg
from support.oracle import Replica, oid_of, same_as_reference, server_rows


class Live:
    """The messages that a walsender has sent so far."""

    def __init__(self, stream: Streaming, cursor: Any) -> None:
        self.stream, self.cursor = stream, cursor
        self.payloads: list[pg.Payload] = []

    def until(self, tag: str) -> None:
        """Reads until a message with this tag arrives. A Commit of an empty transaction (in 14) does not count."""
        deadline = time.monotonic() + 120
        self.stream.flush()
        before = last = b""
        while last[:1] != tag.encode() or before + last[:1] == b"BC":
            message = self.cursor.read_message()
            if message is not None:
                before, last = last[:1], message.payload
                self.payloads.append((message.data_start, last))
                continue
            left = deadline - time.monotonic()
            assert left > 0, f"no {tag} came"
            select.select([self.cursor], [], [], left)

    def confirm(self) -> None:
        """Confirms all ended transactions to the server: the next session begins after them."""
        ends = {ord("C"): 10, ord("c"): 14, ord("P"): 10, ord("p"): 10, ord("K"): 10, ord("r"): 10}
        lsns = [
            int.from_bytes(data[ends[data[0]] : ends[data[0]] + 8])
            for _, data in self.payloads
            if data[0] in ends
        ]
        self.cursor.send_feedback(flush_lsn=lsns[-1], reply=True, force=True)
        deadline = time.monotonic() + 120
        known = f"SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = '{self.stream.slot.name}'"
        while self.stream.slot.execute(known)[0][0] < lsns[-1]:
            assert time.monotonic() < deadline, "the walsender does not hear"
            self.cursor.read_message()
            time.sleep(0.01)


class Streaming:
    """A slot that streams, and several sessions that work at the same time."""

    def __init__(self, database: pg.Database, slot: pg.Slot, sessions: list[Any], elsewhere: Any) -> None:
        self.database = database
        self.slot = slot
        self.sessions = sessions
        self.elsewhere = elsewhere

    def create(self, table: str) -> str:
        self.slot.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, t text)")
        return table

    def run(self, number: int, *statements: pg.Statement) -> None:
        with self.sessions[number].cursor() as cursor:
            for statement in statements:
                if callable(statement):
                    statement(self.sessions[number])
                else:
                    cursor.execute(statement)

    def fill(self, number: int, table: str, first: int, count: int = 200) -> None:
        """Inserts more rows than the server keeps in memory, so that it streams the transaction."""
        self.run(
            number,
            f"INSERT INTO {table} SELECT n, repeat('x', 500) FROM generate_series({first}, {first + count - 1}) AS n",
        )

    def flush(self) -> None:
        """Commits in another database, to flush the log.

        Decoding ends where the log is flushed. An open transaction or a rollback does not flush it.
        """
        with self.elsewhere.cursor() as cursor:
            cursor.execute("INSERT INTO flushed VALUES (1)")

    def peek(self, options: Mapping[str, str | None] | None = None) -> list[pg.Payload]:
        self.flush()
        return self.slot.peek(options)

    @contextlib.contextmanager
    def live(self, *, work_mem: str | None = None, **options: str) -> Iterator[Live]:
        """A walsender that sends while sessions work. It may skip a transaction that ended before it started.

        `work_mem` is the size from which a transaction is streamed; by default the server's setting.
        """
        settings = {"options": f"-c logical_decoding_work_mem={work_mem}"} if work_mem else {}
        with contextlib.closing(
            self.database.server.connect(
                dbname=self.database.name,
                connection_factory=psycopg2.extras.LogicalReplicationConnection,
                **settings,
            )
        ) as connection:
            cursor = connection.cursor()
            cursor.start_replication(
                slot_name=self.slot.name, options=self.slot.options | options, decode=False
            )
            yield Live(self, cursor)
        # The walsender keeps the slot until it notices that its client has disconnected.
        active = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{self.slot.name}'"
        deadline = time.monotonic() + 120
        while self.slot.execute(active)[0][0]:
            assert time.monotonic() < deadline, "the walsender does not go"
            time.sleep(0.01)

    def equal(self, payloads: list[pg.Payload], *tables: str) -> None:
        """Asserts that the committed view equals the server's tables."""
        outs = same_as_reference(payloads, transactions="committed")
        replica = Replica().apply(outs, committed=True)
        for table in tables:
            assert replica.rows(oid_of(self.slot, table)) == server_rows(self.slot, table), table
        same_as_reference(payloads)


@contextlib.contextmanager
def streaming(
    database: pg.Database,
    options: Mapping[str, str | None] | None = None,
    *,
    two_phase: bool = False,
    publication: str = "FOR ALL TABLES",
) -> Iterator[Streaming]:
    merged = pg.all_options(database.version) | dict(options or {})
    with contextlib.ExitStack() as stack:
        elsewhere = stack.enter_context(database.session(dbname="postgres"))
        with elsewhere.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS flushed (i int)")
        slot = stack.enter_context(database.slot(publication, merged, two_phase=two_phase))
        opened = [stack.enter_context(database.session()) for _ in range(3)]
        yield Streaming(database, slot, opened, elsewhere)
