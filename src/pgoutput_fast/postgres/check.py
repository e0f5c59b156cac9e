"""Checks the prerequisites of a capture: reports obstacles and risks of data loss, with advice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.base.display import counted
from pgoutput_fast.catalog.identifiers import quote_identifier
from pgoutput_fast.postgres.errors import LOAD_TABLES, CaptureError
from pgoutput_fast.postgres.findings import Finding
from pgoutput_fast.postgres.heaps import is_superuser
from pgoutput_fast.postgres.money import of_money
from pgoutput_fast.postgres.names import Unsendable, unsendable_names
from pgoutput_fast.postgres.publications import of_publications, of_table, read_tables
from pgoutput_fast.postgres.session import Server, read_server, session, with_identifier
from pgoutput_fast.postgres.slots import NOT_OF_REPACK, Slot, check_name, has_physical, read_slots

__all__ = ["Report", "check"]

# Warn if the slot may be invalidated after fewer bytes of WAL than this.
_LITTLE_WAL = 1 << 30
_SLOTS = f"SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots s WHERE {NOT_OF_REPACK}"
# Words of synchronous_standby_names, which include the names of standbys.
_STANDBYS = re.compile(r'"(?:[^"]|"")*"|[^\s,()"]+')


@dataclass(frozen=True)
class Report:
    """The result of `check`.

    Attributes:
        server: the server.
        slot: the slot, None if there is no slot with that name.
        tables: the published tables, as quoted qualified names.
        findings: all findings, errors first.
    """

    server: Server
    slot: Slot | None
    tables: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return all(finding.level != "error" for finding in self.findings)

    def __str__(self) -> str:
        tables = counted(len(self.tables), "table")
        head = f"PostgreSQL {self.server.major}, database {self.server.database}: {tables} published"
        return "\n".join([head, *(str(finding) for finding in self.findings)])


def check(
    dsn: str,
    publications: Sequence[str],
    slot: str | None = None,
    *,
    through: Literal["walsender", "sql"] = "walsender",
) -> Report:
    """Checks all that a capture needs, without changing anything.

    Args:
        dsn: of the database, with the user of the capture.
        publications: names of the publications, without SQL quotes.
        slot: name of the permanent slot, if the capture uses one.
        through: as in `Capture`; `sql` needs no walsender.

    Raises:
        TypeError: if `publications` is a text instead of a list.
        psycopg2.Error: if a query fails.
    """
    expect_list("publications", publications)
    publications = list(dict.fromkeys(publications))
    with session(dsn) as cursor:
        server = read_server(cursor)
        found = list(_of_server(cursor, server))
        try:
            server = with_identifier(server, dsn)
        except CaptureError as problem:
            what, _, advice = str(problem).partition(". ")
            found.append(Finding("error", "pg_control_system()", what, advice, stops=True))
        slots = read_slots(cursor)
        known = next((each for each in slots if each.name == slot), None)
        if slot is not None:
            found += _of_slot(cursor, server, slot, known)
        found += _of_capacity(cursor, server, known)
        if through == "walsender":
            found += _of_walsenders(cursor, server)
            found += _of_synchronous(cursor, server)
        names = unsendable_names(cursor, publications) if publications else []
        found += map(_of_name, names)
        tables = read_tables(cursor, publications) if publications and not names else []
        found += of_publications(cursor, publications, tables)
        for table in tables:
            found += of_table(table, server.user)
        if not names:
            found += of_money(cursor, dsn, publications, tables)
    order = ("error", "warning", "note")
    table_names = tuple(dict.fromkeys(table.name for table in tables))
    return Report(server, known, table_names, tuple(sorted(found, key=lambda each: order.index(each.level))))


def _of_name(unsendable: Unsendable) -> Finding:
    return Finding(
        "error",
        unsendable.what,
        "a byte of its name, here with an escape, has no form in UTF-8. No snapshot and no mirror can read it, and its "
        "publication cannot be checked further",
        f"Do not publish it, or rename it in any session: {unsendable.renaming}",
    )


# ---- the server --------------------------------------------------------------------------------------------------


def _of_server(cursor: Any, server: Server) -> Iterator[Finding]:
    yield from _of_wal_level(server)
    # From 19 on.
    plugins = server.settings.get("output_plugin_libraries")
    if plugins is not None and "pgoutput" not in {each.strip(' "') for each in plugins.split(",")}:
        yield Finding(
            "error",
            "output_plugin_libraries",
            "it lacks pgoutput, so the server refuses slots with this plugin",
            "Add pgoutput to output_plugin_libraries",
            stops=True,
        )
    if server.in_recovery and server.major < 16:
        yield Finding(
            "error",
            "server",
            f"it is a standby of PostgreSQL {server.major}, and standbys decode only from PostgreSQL 16 on",
            "Capture from the primary",
            stops=True,
        )
    cursor.execute(
        "SELECT rolsuper OR rolreplication OR EXISTS (SELECT 1 FROM pg_catalog.pg_roles g "
        "WHERE g.rolname OPERATOR(pg_catalog.=) ANY (ARRAY['rds_replication', 'cloudsqlsuperuser', 'azure_pg_admin']) "
        "AND pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER')) "
        "FROM pg_catalog.pg_roles r WHERE rolname OPERATOR(pg_catalog.=) current_user"
    )
    (may,) = cursor.fetchone()
    if not may:
        yield Finding(
            "error",
            f"user {server.user}",
            "it does not have the attribute REPLICATION, so the server refuses slots and walsenders",
            f"Run ALTER ROLE {quote_identifier(server.user)} REPLICATION as a superuser",
        )
    if is_superuser(cursor.connection):
        yield Finding(
            "note",
            f"user {server.user}",
            "it is a superuser, so a function that the owner of a table wrote may run as one when the table is loaded",
            "Use a role that may only replicate and read the tables",
        )


def _of_wal_level(server: Server) -> Iterator[Finding]:
    """From PostgreSQL 19 on, wal_level = replica suffices on a primary: decoding is enabled while a slot exists."""
    level = server.settings["wal_level"]
    if server.major >= 19 and server.in_recovery:
        if server.settings["effective_wal_level"] != "logical":
            yield Finding(
                "error",
                "effective_wal_level",
                f"it is {server.settings['effective_wal_level']}, so the WAL of the primary lacks the changes of rows",
                "Create a logical slot on the primary, or set wal_level = logical there and restart it",
                stops=True,
            )
    elif level != "logical" and (server.major < 19 or level == "minimal"):
        yield Finding(
            "error",
            "wal_level",
            f"it is {level}, so the WAL lacks the changes of rows",
            f"Set wal_level = {'logical' if server.major < 19 else 'replica or logical'} and restart the server",
            stops=True,
        )


def _of_capacity(cursor: Any, server: Server, known: Slot | None) -> Iterator[Finding]:
    """Checks whether one more slot is possible, and how much WAL it may keep."""
    cursor.execute(_SLOTS)
    (slots,) = cursor.fetchone()
    most = int(server.settings["max_replication_slots"])
    if known is None and slots >= most:
        yield Finding(
            "error",
            "max_replication_slots",
            f"all {most} slots are in use",
            "Drop a slot that nobody needs, or raise max_replication_slots and restart the server",
        )
    limit = server.settings.get("max_slot_wal_keep_size")
    if limit is None or limit == "-1":
        yield Finding(
            "warning",
            "max_slot_wal_keep_size",
            "there is no limit" if limit else "this version has no such limit",
            "A slot that nobody reads keeps WAL until the disk is full: watch its kept_bytes"
            + (", or set a limit (then the server may invalidate the slot instead)" if limit else ""),
        )


def _of_walsenders(cursor: Any, server: Server) -> Iterator[Finding]:
    """Checks whether one more walsender is possible."""
    cursor.execute("SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication")
    (senders,) = cursor.fetchone()
    most = int(server.settings["max_wal_senders"])
    if senders >= most:
        yield Finding(
            "error",
            "max_wal_senders",
            f"all {most} are in use" if most else "it is 0, so there are no walsenders",
            "Raise max_wal_senders and restart the server, or capture through SQL",
        )


def _of_synchronous(cursor: Any, server: Server) -> Iterator[Finding]:
    """Checks whether commits wait for this package's walsender as for a synchronous standby."""
    setting = "synchronous_standby_names"
    names = {each.strip('"').lower() for each in _STANDBYS.findall(server.settings[setting])}
    cursor.execute("SELECT pg_catalog.current_setting('application_name')")
    (own,) = cursor.fetchone()
    if names & {"*", own.lower()}:
        yield Finding(
            "warning",
            setting,
            f"it has {'*' if '*' in names else own}, so the server counts a reader of changes as a synchronous "
            "standby: commits may wait until the reader has confirmed them, which takes seconds",
            "Name the standbys in it, such as 'FIRST 1 (standby_1)'"
            + ("" if "*" in names else ", or set another application_name in the connection string"),
        )


def _of_slot(cursor: Any, server: Server, name: str, slot: Slot | None) -> Iterator[Finding]:
    subject = f"slot {name}"
    if slot is None and has_physical(cursor, name):
        yield Finding(
            "error", subject, "it is a physical slot, perhaps that of a standby", "Choose another name"
        )
        return
    if slot is None:
        try:
            check_name(name)
        except ValueError as problem:
            yield Finding("error", subject, str(problem), "Choose another name")
            return
        yield Finding(
            "note",
            subject,
            "it does not exist yet",
            "A capture or a mirror creates it. It sends later commits; a mirror also loads the earlier rows",
        )
        return
    if slot.plugin != "pgoutput":
        yield Finding(
            "error",
            subject,
            f"its plugin is {slot.plugin}",
            "Choose another name: this package decodes only pgoutput",
        )
    if slot.database != server.database:
        yield Finding(
            "error",
            subject,
            f"it decodes database {slot.database}, not {server.database}",
            "Choose another name",
        )
    if slot.invalidated is not None:
        yield Finding(
            "error",
            subject,
            f"the server invalidated it ({slot.invalidated}): changes are lost",
            f"Drop it, create a new one, and {LOAD_TABLES}",
        )
    if slot.active_pid is not None:
        yield Finding(
            "error",
            subject,
            f"the server's process {slot.active_pid} uses it",
            "Stop the other capture. If it crashed, the server releases the slot after wal_sender_timeout "
            f"({server.settings['wal_sender_timeout']}), or when you call pg_terminate_backend({slot.active_pid})",
        )
    if slot.safe_bytes is not None and slot.invalidated is None and slot.safe_bytes < _LITTLE_WAL:
        yield Finding(
            "warning",
            subject,
            f"after {max(slot.safe_bytes, 0):,} more bytes of WAL the server may invalidate it",
            "Start the capture now, or raise max_slot_wal_keep_size",
        )
