"""Whether a mirror, its target and a server belong together: checked before any change."""

from __future__ import annotations

from dataclasses import replace

from pgoutput_fast.mirror.settings import MirrorSettings
from pgoutput_fast.mirror.state.mirror_state import Beginning, MirrorState
from pgoutput_fast.postgres.session import read_server, session, with_identifier
from pgoutput_fast.segments.read import newest_segment
from pgoutput_fast.storage.paths import absolute, redacted_uri
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.errors import MirrorError

__all__ = ["expect_same", "expect_source", "read_source"]


def read_source(dsn: str) -> tuple[str, str]:
    """(system identifier of the server, name of the database) of a dsn.

    Raises:
        CaptureError: if the server does not return its identifier; the message says what to grant.
        psycopg2.Error: if the server cannot be asked.
    """
    with session(dsn) as cursor:
        server = read_server(cursor)
    server = with_identifier(server, dsn)
    return server.system_identifier, server.database


def expect_same(settings: MirrorSettings, known: Beginning, store: Store) -> None:
    """Checks that a target belongs to this mirror.

    Args:
        settings: of the mirror.
        known: how the mirror of the target began.
        store: the target.

    Raises:
        MirrorError: if it belongs to another one.
    """
    for what, mine, theirs in (
        ("slot", settings.slot, known.slot),
        ("publications", ", ".join(settings.publications), ", ".join(known.publications)),
        ("format", settings.format, known.format),
        ("namespace", settings.namespace, known.namespace),
        ("iceberg_catalog", settings.table_options.catalog_place, known.iceberg_catalog),
        (
            "segments",
            settings.given_segments and redacted_uri(settings.given_segments),
            known.segments and redacted_uri(absolute(known.segments)),
        ),
        # With others, columns would change their types: histories would stop, and tables be loaded again.
        ("column types", settings.types, known.types or settings.types),
    ):
        if mine != theirs:
            raise MirrorError(
                f"{store} is the target of another mirror: its {what} {_is(what)} {theirs or 'the default'}, not "
                f"{mine or 'the default'}. Use another target, or the same {what}"
            )


def _is(what: str) -> str:
    return "are" if what.endswith("s") else "is"


def expect_source(
    settings: MirrorSettings, known: Beginning, state: MirrorState, store: Store, *, another: bool = False
) -> None:
    """Checks that the dsn leads to the server and database of the target's rows.

    Args:
        settings: of the mirror, with the directory that has its newest segments.
        known: how the mirror began.
        state: of the mirror. It gets the source, if the mirror is older than remembered sources.
        store: the target.
        another: whether another source may replace that one, in a repair.

    Raises:
        MirrorError: if it is another one.
        CaptureError, psycopg2.Error: as `read_source`.
    """
    now, source = read_source(settings.dsn), known.source
    if source is None:
        newest = newest_segment(settings.segments)
        source = now if newest is None else (newest.source.system_identifier, newest.source.database)
    if source == now:
        if known.source is None:
            state.set_beginning(replace(known, source=source))
        return
    is_loaded = known.stage not in ("slot", "load")
    if another and is_loaded:
        return
    raise MirrorError(
        f"{store} has the tables of database {source[1]!r} of the server {source[0]}, but the dsn names database "
        f"{now[1]!r} of the server {now[0]}. Correct the dsn, or use another target"
        + (
            ". Only if this database has taken the place of the other one: compare the tables with it, and repair what "
            "differs, with Mirror.repair(another_source=True) (--repair --another-source)"
            if is_loaded
            else ""
        )
    )
