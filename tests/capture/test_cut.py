"""Networks that lose everything without a word, and servers that hang: a capture notices, and goes on."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg2.extensions
import pytest

from pgoutput_fast.capture import Capture, Limits, create_slot, find_slot
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.postgres.session import connect
from support import pg
from support.capturing import (
    Running,
    Writers,
    expect_exactly_once,
    now,
    prepare,
    wait_until,
    waiting_walsender,
)

pytestmark = pytest.mark.few_servers

SLOT = "cut"
KILLS = int(os.environ.get("PGOUTPUT_FAST_KILLS", "1"))
_PROCESS = """
import logging, sys
from pgoutput_fast.capture import Capture, Limits
logging.basicConfig(format="%(message)s")
dsn, slot, directory, through = sys.argv[1:]
Capture(dsn, slot, ["captured"], directory, limits=Limits(seconds=0.1), through=through).run()
"""


@contextlib.contextmanager
def _own(**settings: str | int | bool) -> Iterator[pg.Database]:
    versions = sorted(pg.installations())
    if not versions:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    # So that it lets go soon of a slot whose walsender nobody hears.
    with Server(pg.installations()[versions[-1]], {"wal_sender_timeout": "5s", **settings}) as server:
        database = pg.Database(server)
        prepare(database, SLOT)
        yield database


class _Proxy:
    """Forwards connections to a server. While it is frozen, it takes what it is sent, acknowledges it, and forwards nothing:
    as a server does that hangs. Connections of that time are lost when it goes on."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._to = port
        self._frozen = threading.Event()
        self._listener = socket.create_server((host, 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def freeze(self) -> None:
        self._frozen.set()

    def thaw(self) -> None:
        old, self._open = self._open, []
        self._frozen.clear()
        for each in old:
            each.close()

    def close(self) -> None:
        self._listener.close()
        self.thaw()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                # Here the proxy stands where the server would see its client go: its keepalives do so.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in (("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
                    client.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
                self._open.append(client)
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError, ValueError),  # `thaw` may close the client between two reads
            socket.create_connection(("127.0.0.1", self._to)) as server,
            client,
        ):
            while True:
                for one in select.select([client, server], [], [], 0.2)[0]:
                    data = one.recv(1 << 16)
                    if self._frozen.is_set():
                        continue
                    if not data:
                        return
                    (server if one is client else client).sendall(data)


def _through(dsn: str, host: str, port: int) -> str:
    return re.sub(r"port=\S+", f"port={port}", re.sub(r"host=\S+", f"host={host}", dsn))


def _caught_up(database: pg.Database, lsn: int, slot: str = SLOT) -> bool:
    found = find_slot(database.dsn, slot)
    return found is not None and (found.confirmed_flush_lsn or 0) >= lsn


@pytest.mark.slow
def test_a_server_that_acknowledges_and_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its system takes what it is sent, so that no timeout of TCP ever comes."""
    with _own(wal_sender_timeout="2s") as own:
        proxy = _Proxy(own.server.port)
        try:
            capture = Capture(
                _through(own.dsn, "127.0.0.1", proxy.port),
                SLOT,
                ["captured"],
                tmp_path,
                limits=Limits(seconds=0.1),
                receive_timeout=3,
            )
            with Running(capture) as running:
                with Writers(own):
                    wait_until(lambda: running.failed or list(tmp_path.glob("*.parquet")))
                    proxy.freeze()
                    wait_until(lambda: running.failed or "has not answered for" in caplog.text)
                    proxy.thaw()
                lsn = now(own)
                wait_until(lambda: running.failed or _caught_up(own, lsn))
            assert running.failed is None
            expect_exactly_once(own, tmp_path)
        finally:
            proxy.close()


def test_a_walsender_that_hangs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with _own(wal_sender_timeout="2s") as own:
        capture = Capture(
            own.dsn, SLOT, ["captured"], tmp_path, limits=Limits(seconds=0.1), receive_timeout=3
        )
        with Running(capture) as running:
            own.execute("INSERT INTO counted VALUES (1, 1)")
            wait_until(lambda: running.failed or list(tmp_path.glob("*.parquet")))
            pid = waiting_walsender(own, SLOT)
            os.kill(pid, signal.SIGSTOP)
            try:
                own.execute("INSERT INTO counted VALUES (2, 1)")
                wait_until(lambda: running.failed or "has not answered for" in caplog.text)
            finally:
                os.kill(pid, signal.SIGCONT)
            lsn = now(own)
            wait_until(lambda: running.failed or _caught_up(own, lsn))
        assert running.failed is None
        expect_exactly_once(own, tmp_path)


def test_a_server_that_is_busy_is_not_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a large transaction of other tables it sends nothing for a while, but it answers within its wal_sender_timeout."""
    # The server of a busy machine may be silent for seconds, too.
    with _own(wal_sender_timeout="40s") as own:
        # Much slower than it would be: each change is looked at for a publication and passed over.
        own.execute("CREATE TABLE unpublished (id int, v text)")
        own.execute("INSERT INTO unpublished SELECT g, repeat('x', 50) FROM generate_series(1, 600000) g")
        own.execute("INSERT INTO counted VALUES (1, 1)")
        capture = Capture(
            own.dsn, SLOT, ["captured"], tmp_path, limits=Limits(seconds=0.1), receive_timeout=0.1
        )
        capture.run(until_lsn=now(own))
        expect_exactly_once(own, tmp_path)
    assert "has not answered for" not in caplog.text


def test_what_a_dsn_says_goes_over_the_timeouts() -> None:
    with _own() as own:
        connection = connect(own.dsn)
        given = connect(own.dsn + " tcp_user_timeout=1234 connect_timeout=7")
        try:
            # As the system has it, not only as libpq was told.
            option = socket.TCP_USER_TIMEOUT
            for each, expected in ((connection, 30_000), (given, 1234)):
                with socket.socket(fileno=os.dup(each.fileno())) as seen:
                    assert seen.getsockopt(socket.IPPROTO_TCP, option) == expected
            assert given.get_dsn_parameters()["connect_timeout"] == "7"
        finally:
            connection.close()
            given.close()


# ---- a network that loses everything -------------------------------------------------------------------------------


class _Network:
    """A network namespace with one way out: a cable to this machine, which can be pulled out."""

    def __init__(self) -> None:
        self.name = f"pgo{os.getpid()}"
        network = f"10.{200 + os.getpid() // 250 % 50}.{os.getpid() % 250}"
        self.host, self._inside = f"{network}.1", f"{network}.2"
        self._cable = f"pgoh{os.getpid()}"

    def __enter__(self) -> _Network:
        inside = f"pgoi{os.getpid()}"
        try:
            _ip("netns", "add", self.name)
            _ip("link", "add", self._cable, "type", "veth", "peer", "name", inside)
            _ip("link", "set", inside, "netns", self.name)
            _ip("addr", "add", f"{self.host}/24", "dev", self._cable)
            _ip("link", "set", self._cable, "up")
            _ip("-n", self.name, "addr", "add", f"{self._inside}/24", "dev", inside)
            _ip("-n", self.name, "link", "set", inside, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for command in (("link", "del", self._cable), ("netns", "del", self.name)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(*command)

    def cut(self) -> None:
        _ip("link", "set", self._cable, "down")

    def mend(self) -> None:
        _ip("link", "set", self._cable, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.unsanitized
def test_a_network_that_loses_everything(tmp_path: Path) -> None:
    """While something waits to be acknowledged, no keepalive runs.

    By default it is noticed within a minute; `make soak` waits for that. Here the dsn says that it shall go faster.
    """
    faster = "" if KILLS > 1 else " tcp_user_timeout=6000"
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip(
            "no network can be made here; see the test of a server that acknowledges and says nothing"
        )
    if psycopg2.extensions.libpq_version() < 120000:
        pytest.skip("this libpq knows no tcp_user_timeout")
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(_own())
        try:
            network = stack.enter_context(_Network())
        except subprocess.CalledProcessError as problem:
            pytest.skip(f"no network can be made here: {problem.stderr!r}")
        proxy = _Proxy(own.server.port, network.host)
        stack.callback(proxy.close)
        create_slot(own.dsn, f"{SLOT}_sql")
        captures = [
            _Inside(
                network,
                _through(own.dsn, network.host, proxy.port) + faster,
                tmp_path / through,
                slot,
                through,
            )
            for through, slot in (("walsender", SLOT), ("sql", f"{SLOT}_sql"))
        ]
        for each in captures:
            stack.callback(each.end)
        own.execute("INSERT INTO counted VALUES (1, 1)")
        wait_until(lambda: all(each.has_segments for each in captures))
        network.cut()
        began = time.monotonic()
        own.execute("INSERT INTO counted VALUES (2, 1)")
        # By default it takes half a minute. A busy machine may let processes wait.
        wait_until(lambda: all(each.has_noticed for each in captures), 59 if KILLS > 1 else 240)
        print(f"noticed after {time.monotonic() - began:.1f} s")
        network.mend()
        lsn = now(own)
        wait_until(lambda: all(each.runs and _caught_up(own, lsn, each.slot) for each in captures))
        for each in captures:
            expect_exactly_once(own, each.directory)


class _Inside:
    """A capture in a process of its own, inside of a network."""

    def __init__(self, network: _Network, dsn: str, directory: Path, slot: str, through: str) -> None:
        self.directory, self.slot = directory, slot
        directory.mkdir()
        self._said = directory.with_suffix(".log")
        with self._said.open("w") as log:
            self._process = subprocess.Popen(
                [
                    *("ip", "netns", "exec", network.name),
                    *(sys.executable, "-c", _PROCESS, dsn, slot, str(directory), through),
                ],
                stderr=log,
            )

    @property
    def runs(self) -> bool:
        assert self._process.poll() is None, self._said.read_text()
        return True

    @property
    def has_segments(self) -> bool:
        return self.runs and any(self.directory.glob("*.parquet"))

    @property
    def has_noticed(self) -> bool:
        return self.runs and re.search("tries again|lost its connection", self._said.read_text()) is not None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
