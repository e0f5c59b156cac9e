"""A mirror goes on with a promoted standby, as docs/operating.md says: with the slot (17 and later), or by a repair."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2.extras
import pytest

from pgoutput_fast.capture import create_slot, find_slot
from pgoutput_fast.demo.servers import Installation, Server
from pgoutput_fast.mirror import Mirror, SlotLostError
from support import pg
from support.capturing import drop_when_free, wait_until
from support.forms import and_slow
from support.mirrors import Following, current_of
from support.paths import DOCS

PAGE = (DOCS / "operating.md").read_text()
# The first version whose standbys can have slots.
_SYNCED = 17


class Pair:
    """A primary and its standby, with the settings of the page.

    Args:
        installation: of both.
        directory: for a copy.
        is_synced: whether the standby gets the slots of the primary, and tells which rows it needs.
        primary: settings of the primary.
    """

    def __init__(
        self, installation: Installation, directory: Path, *, is_synced: bool = True, **primary: str
    ) -> None:
        self._is_synced = is_synced
        synced = {"sync_replication_slots": True, "hot_standby_feedback": True} if is_synced else {}
        self.primary = Server(installation, primary)
        self.standby = Server(
            installation,
            {
                **synced,
                "primary_slot_name": "standby_1",
                "wal_receiver_status_interval": 1,
                "wal_retrieve_retry_interval": 100,
            },
        )
        self._directory = directory

    def start(self) -> None:
        self.primary.start()
        self.execute(self.primary, "SELECT pg_create_physical_replication_slot('standby_1')")
        if self._is_synced:
            self.execute(
                self.primary,
                "ALTER SYSTEM SET synchronized_standby_slots = 'standby_1'",
                "SELECT pg_reload_conf()",
            )
        copy = self._directory / "copy"
        program = self.primary.installation.bindir / "pg_basebackup"
        subprocess.run(
            [program, "-d", self.primary.dsn, "-D", copy, "-c", "fast", "--no-sync"],
            check=True,
            capture_output=True,
        )
        self.standby.start()
        self.standby.stop()
        data = self.standby.data_directory
        own = {name: (data / name).read_text() for name in ("postgresql.conf", "pg_hba.conf")}
        owner = data.stat()
        shutil.rmtree(data)
        shutil.move(copy, data)
        for name, text in own.items():
            (data / name).write_text(text)
        source = f"host=127.0.0.1 port={self.primary.port} user=postgres dbname=postgres sslmode=disable"
        (data / "postgresql.auto.conf").write_text(f"primary_conninfo = '{source}'\n")
        (data / "standby.signal").touch()
        for path in (data, *data.rglob("*")):
            shutil.chown(path, owner.st_uid, owner.st_gid)
        data.chmod(0o700)
        self.standby.start()

    @property
    def dsn(self) -> str:
        """Names both servers, as the page says."""
        (line,) = re.findall(r"^    host=(db1,db2.*)$", PAGE, re.MULTILINE)
        more = line[line.index("target_session_attrs") :]
        ports = f"port={self.primary.port},{self.standby.port}"
        return f"host=127.0.0.1,127.0.0.1 {ports} dbname=postgres user=postgres sslmode=disable {more}"

    def execute(self, server: Server, *statements: str) -> list[tuple[Any, ...]]:
        connection = server.connect()
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                for each in statements:
                    cursor.execute(each)
                return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()

    def promote(self) -> None:
        self.primary.crash()
        self.execute(self.standby, "SELECT pg_promote()")

    def close(self) -> None:
        self.standby.close()
        self.primary.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    newest = max(pg.installations(), default=0)
    if newest < _SYNCED:
        pytest.skip("no PostgreSQL whose standbys have slots")
    if not (pg.installations()[newest].bindir / "pg_basebackup").exists():
        pytest.skip("this PostgreSQL has no pg_basebackup")
    pair = Pair(pg.installations()[newest], tmp_path)
    try:
        pair.start()
        yield pair
    finally:
        pair.close()


def _seldom(look: Callable[[], object]) -> Callable[[], object]:
    """A look that costs much, less often."""

    def slow() -> object:
        time.sleep(0.3)
        return look()

    return slow


def _give_failover(dsn: str) -> None:
    """The command of the page."""
    (command,) = re.findall(r"^psql .*$", PAGE, re.MULTILINE)
    connection = psycopg2.connect(dsn, connection_factory=psycopg2.extras.LogicalReplicationConnection)
    try:
        with connection.cursor() as cursor:
            cursor.execute(shlex.split(command)[-1])
    finally:
        connection.close()


@pytest.mark.slow
def test_a_standby_takes_over(pair: Pair, tmp_path: Path) -> None:
    lake = tmp_path / "lake"

    def ids() -> list[int]:
        return sorted(current_of(lake, "public.t")["id"].to_pylist())

    pair.execute(
        pair.primary,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION shop FOR ALL TABLES",
    )
    with Mirror(pair.dsn, "to_lake", ["shop"], lake, seconds=0.5) as mirror:
        mirror.run(until_lsn="now")
        _give_failover(pair.primary.dsn)
        with Following(mirror) as following:
            ready = next(sql for sql in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL) if "synced" in sql)
            following.until(
                _seldom(lambda: ("to_lake", True, False, None) in pair.execute(pair.standby, ready))
            )
            pair.execute(pair.primary, "INSERT INTO t VALUES (2)")
            following.until(_seldom(lambda: ids() == [1, 2]))
            pair.promote()
            pair.execute(pair.standby, "INSERT INTO t VALUES (3)")
            following.until(_seldom(lambda: ids() == [1, 2, 3]))
        # Without the slot, the promoted standby is still the same server: a repair is sufficient.
        drop_when_free(pair.standby.dsn, "to_lake")
        pair.execute(pair.standby, "DELETE FROM t WHERE id = 1")
        with pytest.raises(SlotLostError):
            mirror.run(until_lsn="now")
        (repaired,) = mirror.repair()
        assert "1 deleted" in str(repaired)
    assert ids() == [2, 3]


@pytest.mark.parametrize("version", and_slow([18], [16]))
def test_a_slot_of_a_standby_that_conflicts_with_recovery(tmp_path: Path, version: int) -> None:
    """The reason is not lost WAL: the primary removed catalog rows that the slot needs. 16 does not say it in words."""
    installation = pg.installations().get(version)
    if installation is None or not (installation.bindir / "pg_basebackup").exists():
        pytest.skip(f"no PostgreSQL {version} with pg_basebackup")
    pair = Pair(installation, tmp_path, is_synced=False)
    try:
        pair.start()
        made = threading.Thread(target=lambda: create_slot(pair.standby.dsn, "conflicts"))
        made.start()
        while made.is_alive():
            pair.execute(pair.primary, "SELECT pg_log_standby_snapshot()")
            made.join(0.2)
        assert (slot := find_slot(pair.standby.dsn, "conflicts")) is not None
        assert slot.invalidated is None
        pair.execute(pair.primary, "CREATE TABLE gone (id int)", "DROP TABLE gone", "VACUUM pg_class")

        def why() -> str | None:
            found = find_slot(pair.standby.dsn, "conflicts")
            assert found is not None
            return found.invalidated

        wait_until(why)
        assert why() == ("conflicting with recovery" if version == 16 else "rows_removed")
    finally:
        pair.close()
