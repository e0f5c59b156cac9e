"""A mirror goes on with a promoted standby, as docs/operating.md says: with the slot (17 and later), or by a repair."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast.capture import Capture, Snapshot, alter_slot, create_slot, find_slot
from pgoutput_fast.cli.main import main
from pgoutput_fast.demo.servers import Installation, Server
from pgoutput_fast.mirror import Mirror, SlotLostError, verify
from pgoutput_fast.mirror.load import source
from pgoutput_fast.snapshot import LoadProgress
from support import pg
from support.capturing import drop_when_free, wait_until
from support.forms import and_slow
from support.mirrors import Following, current_of, history_of
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
        feedback: whether it tells this in any case.
        primary: settings of the primary.
    """

    def __init__(
        self,
        installation: Installation,
        directory: Path,
        *,
        is_synced: bool = True,
        feedback: bool = False,
        **primary: str,
    ) -> None:
        self._is_synced = is_synced
        synced = {"sync_replication_slots": True} if is_synced else {}
        synced |= {"hot_standby_feedback": True} if is_synced or feedback else {}
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
    # The slot that exists gets the property.
    with Mirror(pair.dsn, "to_lake", ["shop"], lake, seconds=0.5) as mirror:
        mirror.run(until_lsn="now")
    assert (slot := find_slot(pair.primary.dsn, "to_lake")) is not None
    assert not slot.failover
    with Mirror(pair.dsn, "to_lake", ["shop"], lake, seconds=0.5, failover=True) as mirror:
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
    assert (slot := find_slot(pair.standby.dsn, "to_lake")) is not None
    assert slot.failover
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


@contextmanager
def _standby(tmp_path: Path, version: int, *statements: str) -> Iterator[tuple[Pair, Callable[[], None]]]:
    """A primary with a publication, its standby, and what ends the log that slots of the standby need."""
    installation = pg.installations().get(version)
    if installation is None or not (installation.bindir / "pg_basebackup").exists():
        pytest.skip(f"no PostgreSQL {version} with pg_basebackup")
    pair, stop = Pair(installation, tmp_path, is_synced=False, feedback=True), threading.Event()

    def log() -> None:
        # A slot of a standby begins when the primary logs its running transactions.
        while not stop.wait(0.2):
            pair.execute(pair.primary, "SELECT pg_log_standby_snapshot()")

    logger = threading.Thread(target=log)

    def end() -> None:
        stop.set()
        logger.join()

    try:
        pair.start()
        pair.execute(pair.primary, *statements, "CREATE PUBLICATION shop FOR ALL TABLES")
        wait_until(lambda: pair.execute(pair.standby, "SELECT 1 FROM pg_publication"))
        logger.start()
        yield pair, end
    finally:
        stop.set()
        pair.close()


@pytest.mark.slow
@pytest.mark.parametrize("version", [16, 18])
def test_a_standby_is_read_in_ranges(tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a transaction of its own, while the primary changes rows and moves them between ranges."""
    monkeypatch.setattr(source, "_LEAST_BYTES", 8 * 8192)
    made = (
        "CREATE TABLE t (id int PRIMARY KEY, n int, note text, long text)",
        "ALTER TABLE t ALTER long SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, 0, repeat('x', 700), repeat(g::text, 900) FROM generate_series(1, 2000) g",
        "DELETE FROM t WHERE id <= 1000 AND id % 2 = 0",
    )
    ranges: list[int] = []
    with _standby(tmp_path, version, *made) as (pair, end):

        def progress(now: LoadProgress) -> None:
            ranges.append(now.ranges)
            k = 1001 + 10 * now.ranges
            pair.execute(
                pair.primary,
                f"UPDATE t SET n = n + 1, note = note || 'y' WHERE id BETWEEN {k} AND {k + 20}",
                f"DELETE FROM t WHERE id = {k + 3}",
                f"INSERT INTO t VALUES ({10000 + k}, 1, 'new')",
            )

        more = {"snapshot": "ranges", "seconds": 0.2, "progress": progress}
        with Mirror(pair.standby.dsn, "to_lake", ["shop"], tmp_path / "lake", **more) as mirror:
            mirror.run(until_lsn="now")
            mirror.run(until_lsn="now")
        assert len(ranges) > 20
        assert [str(each) for each in verify(tmp_path / "lake", pair.standby.dsn) if not each.equal] == []
        history = history_of(tmp_path / "lake", "public.t")
        assert len({row["_commit_lsn"] for row in history.to_pylist() if row["_seq"] < 0}) == 1
        end()


@pytest.mark.slow
@pytest.mark.parametrize("version", [16, 18])
def test_a_standby_is_the_source(tmp_path: Path, version: int) -> None:
    """Snapshot, capture and mirror of a standby, which is promoted then."""
    lake = tmp_path / "lake"

    def ids(table: str = "public.t") -> list[int]:
        return sorted(current_of(lake, table)["id"].to_pylist())

    made = ("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with _standby(tmp_path, version, *made) as (pair, end):
        dsn = pair.standby.dsn
        with Snapshot(dsn, ["shop"]) as snapshot:
            assert sum(batch.num_rows for _, batch in snapshot.read()) == 1
        Capture(dsn, "captured", ["shop"], tmp_path / "segments").run(until_lsn="now")
        with Mirror(dsn, "to_lake", ["shop"], lake, seconds=0.2) as mirror, Following(mirror) as following:
            following.until(_seldom(lambda: following.loaded() == 1))
            pair.execute(pair.primary, "INSERT INTO t VALUES (2)", "CREATE TABLE u (id int PRIMARY KEY)")
            following.until(_seldom(lambda: ids() == [1, 2]))
            following.until(_seldom(lambda: following.loaded() == 2))
            assert [str(each) for each in verify(lake, dsn, tables=["public.t"]) if not each.equal] == []
            end()
            pair.promote()
            pair.execute(pair.standby, "INSERT INTO t VALUES (3)", "INSERT INTO u VALUES (4)")
            following.until(_seldom(lambda: (ids(), ids("public.u")) == ([1, 2, 3], [4])))
        drop_when_free(dsn, "captured")


def test_failover_of_slots(servers: pg.Servers, capsys: pytest.CaptureFixture[str]) -> None:
    """Slots get the property when they are made, and later. Before 17 there is none."""
    version = max(servers, default=0)
    if not version:
        pytest.skip("no PostgreSQL")
    dsn = servers[version].dsn
    if version < _SYNCED:
        with pytest.raises(ValueError, match="came with PostgreSQL 17"):
            alter_slot(dsn, "s", failover=True)
        return
    create_slot(dsn, "to_alter")
    try:
        for words, failover in (("--failover", True), ("--no-failover", False)):
            assert main(["slots", "alter", "to_alter", "--dsn", dsn, words]) == 0
            assert "slot to_alter" in capsys.readouterr().out
            assert (found := find_slot(dsn, "to_alter")) is not None
            assert found.failover is failover
        assert main(["slots", "alter", "to_alter", "--dsn", dsn]) == 2
        assert main(["slots", "alter", "to_alte", "--dsn", dsn, "--failover"]) == 1
        assert "the nearest: to_alter" in capsys.readouterr().err
    finally:
        drop_when_free(dsn, "to_alter")


def test_failover_of_older_servers(tmp_path: Path, servers: pg.Servers) -> None:
    older = max((version for version in servers if version < _SYNCED), default=None)
    if older is None:
        pytest.skip("no PostgreSQL before 17")
    database = pg.Database(servers[older])
    try:
        database.execute("CREATE PUBLICATION shop")
        mirror = Mirror(database.dsn, "failing", ["shop"], tmp_path / "lake", failover=True)
        capture = Capture(database.dsn, "failing", ["shop"], tmp_path / "segments", failover=True)
        with mirror, pytest.raises(ValueError, match="came with PostgreSQL 17"):
            mirror.run(until_lsn="now")
        with pytest.raises(ValueError, match="came with PostgreSQL 17"):
            capture.run(until_lsn="now")
        assert find_slot(database.dsn, "failing") is None
    finally:
        database.drop()
