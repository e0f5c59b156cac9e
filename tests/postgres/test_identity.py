"""Which server it is: asked of a walsender where `pg_control_system()` may not be called, else an error says what to grant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pgoutput_fast.capture import Capture, CaptureError, Snapshot, check, create_slot
from pgoutput_fast.postgres.session import current_lsn, read_server, session, with_identifier
from pgoutput_fast.segments import list_segments
from support import pg
from support.capturing import drop_when_free


class Restricted:
    """A database whose user may not call `pg_control_system()`."""

    def __init__(self, database: pg.Database) -> None:
        self.database = database
        self.user = f"{database.name}_user"
        self.slot = f"{database.name}_slot"
        database.execute(
            f"CREATE ROLE {self.user} LOGIN REPLICATION",
            "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC",
            "CREATE TABLE t (id int PRIMARY KEY)",
            "CREATE PUBLICATION p FOR TABLE t",
            f"GRANT SELECT ON t TO {self.user}",
        )

    @property
    def dsn(self) -> str:
        return f"{self.database.dsn} user={self.user}"

    @property
    def identifier(self) -> str:
        return str(self.database.execute("SELECT system_identifier::text FROM pg_control_system()")[0][0])

    def drop(self) -> None:
        drop_when_free(self.database.dsn, self.slot)
        self.database.execute(f"DROP OWNED BY {self.user}", f"DROP ROLE {self.user}")
        self.database.drop()


@pytest.fixture(params=(10, 18), ids=lambda version: f"pg{version}")
def restricted(request: pytest.FixtureRequest, servers: pg.Servers) -> Iterator[Restricted]:
    if request.param not in servers:
        pytest.skip(f"no PostgreSQL {request.param}: {pg.HOW_TO_GET_SERVERS}")
    made = Restricted(pg.Database(servers[request.param]))
    yield made
    made.drop()


def test_a_walsender_says_which_server_it_is(restricted: Restricted, tmp_path: Path) -> None:
    dsn = restricted.dsn
    with session(dsn) as cursor:
        server = read_server(cursor)
    assert server.system_identifier == ""
    assert with_identifier(server, dsn).system_identifier == restricted.identifier
    assert check(dsn, ["p"]).server.system_identifier == restricted.identifier
    with Snapshot(dsn, ["p"]) as snapshot:
        assert snapshot.export.server.system_identifier == restricted.identifier
    create_slot(dsn, restricted.slot)
    for through in ("walsender", "sql"):
        restricted.database.execute(f"INSERT INTO t VALUES ({len(through)})")
        capture = Capture(dsn, restricted.slot, ["p"], tmp_path, through=through)  # type: ignore[arg-type]
        capture.run(until_lsn=current_lsn(dsn))
    segments = list_segments(tmp_path)
    assert len(segments) >= 2
    assert {each.source.system_identifier for each in segments} == {restricted.identifier}


def test_where_nothing_says_so_it_is_an_error(restricted: Restricted, tmp_path: Path) -> None:
    """A role that gets no walsender."""
    create_slot(restricted.dsn, restricted.slot)
    restricted.database.execute(f"ALTER ROLE {restricted.user} NOREPLICATION")
    with session(restricted.dsn) as cursor:
        server = read_server(cursor)
        with pytest.raises(
            CaptureError, match=r"GRANT EXECUTE ON FUNCTION pg_catalog\.pg_control_system\(\)"
        ):
            with_identifier(server, restricted.dsn)
    report = check(restricted.dsn, ["p"], through="sql")
    assert not report.ok
    assert "pg_control_system()" in [each.subject for each in report.findings if each.level == "error"]
    assert f"GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO {restricted.user}" in str(report)
    with pytest.raises(CaptureError, match="GRANT EXECUTE"):
        Capture(restricted.dsn, restricted.slot, ["p"], tmp_path, through="sql").run(until_lsn=1)
    assert list(tmp_path.glob("*.parquet")) == []
    # What it says helps.
    restricted.database.execute(
        f"GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO {restricted.user}"
    )
    assert check(restricted.dsn, ["p"], through="sql").server.system_identifier == restricted.identifier
