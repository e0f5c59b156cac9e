"""A capture in a process of its own: the command, and one that ends with what started it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgoutput_fast.capture import Capture, CaptureError, Limits, Snapshot, create_slot, drop_slot, find_slot
from pgoutput_fast.capture.process import CaptureProcess, Settings
from pgoutput_fast.cli.main import main
from pgoutput_fast.segments import list_segments
from support import pg
from support.capturing import committed, now, wait_until

pytestmark = pytest.mark.few_servers

COMMAND = [sys.executable, "-m", "pgoutput_fast", "capture"]


@pytest.fixture(scope="module")
def base(servers: pg.Servers) -> Iterator[pg.Database]:
    """A database of the newest server."""
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[max(servers)])
    database.execute("CREATE TABLE t (id int)", "CREATE PUBLICATION p FOR TABLE t")
    yield database
    database.drop()


@pytest.fixture
def slot(base: pg.Database) -> Iterator[str]:
    name = f"{base.name}_p"
    create_slot(base.dsn, name)
    yield name
    base.execute(
        f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{name}'"
    )
    wait_until(lambda: not _is_active(base, name))
    drop_slot(base.dsn, name)


def _reader(database: pg.Database, slot: str) -> int | None:
    """The server's process that reads from the slot. Its positions move while nothing happens, too."""
    found = find_slot(database.dsn, slot)
    return None if found is None else found.active_pid


def _is_active(database: pg.Database, slot: str) -> bool:
    return _reader(database, slot) is not None


def _until_now(database: pg.Database, slot: str, path: Path) -> list[str]:
    """Arguments of the command."""
    given = {"dsn": database.dsn, "slot": slot, "publication": "p", "path": str(path), "until": "now"}
    return [part for name, value in given.items() for part in (f"--{name}", value)]


@pytest.mark.slow
def test_the_command_applies_retention(base: pg.Database, slot: str, tmp_path: Path) -> None:
    given = _until_now(base, slot, tmp_path)
    for n, more in enumerate(([], ["--keep-days", "0"], ["--keep-days", "1"])):
        base.execute(f"INSERT INTO t VALUES ({n})")
        done = subprocess.run([*COMMAND, *given, *more, "--keep-unread"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    # The second one removed the first segment; to the third, nothing is old.
    assert len(list_segments(tmp_path)) == 2
    done = subprocess.run([*COMMAND, *given, "--keep-days", "-1"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "a time to keep files cannot be negative" in done.stderr


@pytest.mark.slow
def test_the_command_captures_through_sql_and_tells_metrics(
    base: pg.Database, slot: str, tmp_path: Path
) -> None:
    base.execute("INSERT INTO t VALUES (1)")
    file = tmp_path / "capture.prom"
    given = _until_now(base, slot, tmp_path / "s")
    told = [
        "--through",
        "sql",
        "--metrics-file",
        str(file),
        "--metrics-address",
        "127.0.0.1:0",
        "--log-seconds",
        "60",
    ]
    done = subprocess.run([*COMMAND, *given, *told], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sum(segment.rows for segment in list_segments(tmp_path / "s")) >= 3
    assert "pgoutput_fast_capture_segments_total" in file.read_text()
    done = subprocess.run([*COMMAND, *given, "--metrics-address", "here"], capture_output=True, text=True)
    assert (done.returncode, "must be host:port" in done.stderr) == (1, True)
    # Files that must not grow: what to do is said as well.
    base.execute("INSERT INTO t SELECT g FROM generate_series(10, 20000) g")
    limit = (4000, 4000)
    done = subprocess.run(
        [*COMMAND, *given],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    assert done.returncode == 1
    assert re.search(
        "File too large.* There is no space for another segment in .*. Nothing is lost", done.stderr
    )


@pytest.mark.slow
def test_a_publication_whose_name_has_a_comma(base: pg.Database, slot: str, tmp_path: Path) -> None:
    """By the command it is given alone; in the options of a stream it stands in quotes."""
    pytest.importorskip("pyspark")
    from pgoutput_fast.spark.source.snapshot import plan_snapshot
    from pgoutput_fast.spark.source.stream_capture import known_with_server, settings_of

    base.execute(
        "CREATE TABLE apart (id int PRIMARY KEY)",
        'CREATE PUBLICATION "Some, other" FOR TABLE apart',
        "INSERT INTO apart VALUES (1)",
    )
    try:
        given = {"dsn": base.dsn, "slot": slot, "path": str(tmp_path), "publication": 'p,"Some, other"'}
        assert settings_of(given).publications == ("p", "Some, other")
        assert known_with_server(given, ["public.apart"]).named("public.apart")
        with pytest.raises(ValueError, match=r'option publication: .* such as shop,"b,c"'):
            settings_of(given | {"publication": 'p,"Some, other'})
        options = {
            "mode": "snapshot",
            "dsn": base.dsn,
            "table": "public.apart",
            "publication": '"Some, other"',
        }
        with Snapshot(base.dsn, ["Some, other"]) as snapshot:
            held = {"snapshot": snapshot.name, "consistent_lsn": str(snapshot.consistent_lsn)}
            assert plan_snapshot(options | held).table.name == "public.apart"
        arguments = ["--dsn", base.dsn, "--slot", slot, "--path", str(tmp_path), "--until", "now"]
        more = ["--publication", "p", "--publication", "Some, other"]
        done = subprocess.run([*COMMAND, *arguments, *more], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        base.execute("INSERT INTO apart VALUES (2)")
        done = subprocess.run([*COMMAND, *arguments, *more], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert committed(tmp_path).table("public.apart").column("id").to_pylist() == [1, 2]
    finally:
        base.execute('DROP PUBLICATION "Some, other"', "DROP TABLE apart")


def test_the_command(base: pg.Database, slot: str, tmp_path: Path) -> None:
    base.execute("INSERT INTO t VALUES (1)")
    given = ["--slot", slot, "--publication", "p", "--path", str(tmp_path), "--plugin-option", "binary=true"]
    environment = {**os.environ, "PGOUTPUT_FAST_DSN": base.dsn}
    done = subprocess.run(
        [*COMMAND, *given, "--until", "now"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "the capture reads slot" in done.stderr
    (segment,) = list_segments(tmp_path)
    assert (segment.source.publications, segment.source.options["binary"]) == (("p",), "true")
    # Up to a position that was passed; and for as long as nobody says otherwise.
    assert segment.end_lsn is not None
    lsn = f"{segment.end_lsn >> 32:X}/{segment.end_lsn & 0xFFFFFFFF:X}"
    assert (
        subprocess.run([*COMMAND, *given, "--until", lsn], env=environment, capture_output=True).returncode
        == 0
    )
    running = subprocess.Popen(
        [*COMMAND, *given, "--quiet"], env=environment, stderr=subprocess.PIPE, text=True
    )
    with running:
        wait_until(lambda: running.poll() is not None or _is_active(base, slot))
        again = subprocess.run([*COMMAND, *given], env=environment, capture_output=True, text=True)
        assert (again.returncode, "another process captures into" in again.stderr) == (1, True)
        base.execute("INSERT INTO t VALUES (2)")
        lsn_of_two = now(base)
        time.sleep(0.2)
        running.send_signal(signal.SIGTERM)
        assert running.stderr is not None
        # Only what the check at the start warns of is said.
        assert running.wait(240) == 0
        said = running.stderr.read().splitlines()
        assert all(" ERROR: public.t: " in line or " WARNING: max_" in line for line in said)
    Capture(base.dsn, slot, ["p"], tmp_path, overrides={"binary": "true"}).run(until_lsn=lsn_of_two)
    assert sum(segment.rows for segment in list_segments(tmp_path)) >= 6


def test_a_command_that_is_stopped_before_its_position(base: pg.Database, slot: str, tmp_path: Path) -> None:
    given = ["--dsn", base.dsn, "--slot", slot, "--publication", "p", "--path", str(tmp_path), "--quiet"]
    # No log goes so far.
    running = subprocess.Popen([*COMMAND, *given, "--until", "FFFFFFF/0"], stderr=subprocess.PIPE, text=True)
    with running:
        wait_until(lambda: running.poll() is not None or _is_active(base, slot))
        running.send_signal(signal.SIGTERM)
        said = running.communicate(timeout=240)[1]
    assert running.returncode == 1
    assert "it was stopped before everything that committed up to FFFFFFF/0 was durable. Run it again" in said


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--slot", "s", "--path", "x"], "this argument is missing: --publication"),
        (
            ["--slot", "s", "--path", "x", "--publication", "p", "--until", "soon"],
            "--until: an LSN as text is like",
        ),
        (
            ["--slot", "s", "--path", "x", "--publication", "p", "--rows", "0"],
            "the limits of a segment must be positive",
        ),
        (["--slot", "s", "--path", "x", "--publication", "p", "--plugin-option", "binary"], "NAME=VALUE"),
        (
            ["--slot", "s", "--path", "x", "--publication", "p", "--file-mode", "rw"],
            "octal digits, such as 640",
        ),
        (["--slot", "s", "--path", "x", "--publication", "p", "--file-mode", "755"], "such as 0o640"),
    ],
)
def test_commands_that_are_wrong(
    given: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["capture", *given]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert not list(tmp_path.iterdir())


def _messages(port: int) -> float:
    """How many it says that it has received."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        found = re.search(
            r"^pgoutput_fast_capture_messages_total\S* (\S+)$", answer.read().decode(), re.MULTILINE
        )
    return float(found[1]) if found else 0


def test_one_that_ends_with_what_started_it(base: pg.Database, slot: str, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    more = {"metrics_address": f"127.0.0.1:{port}"}
    settings = Settings(base.dsn, slot, ("p",), str(tmp_path), {"seconds": 600.0}, more)
    parent = (
        "import json, sys, time; from pgoutput_fast.capture.process import CaptureProcess, Settings;"
        "CaptureProcess(Settings.from_dict(json.loads(sys.argv[1]))).start(); time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", parent, json.dumps(settings.to_dict())]) as process:
        wait_until(lambda: process.poll() is not None or _is_active(base, slot))
        base.execute("INSERT INTO t VALUES (1)")
        wait_until(lambda: _messages(port) >= 3)
        process.kill()
    wait_until(lambda: not _is_active(base, slot))
    # What had come was written first.
    assert list_segments(tmp_path)


def test_one_that_waits_for_another(base: pg.Database, slot: str, tmp_path: Path) -> None:
    stop = threading.Event()
    other = threading.Thread(target=Capture(base.dsn, slot, ["p"], tmp_path).run, kwargs={"stop": stop})
    process = CaptureProcess(Settings(base.dsn, slot, ("p",), str(tmp_path)))
    other.start()
    try:
        wait_until(lambda: _is_active(base, slot))
        pid = _reader(base, slot)
        process.start()
        time.sleep(1)
        assert process.check()
        assert _reader(base, slot) == pid
        stop.set()
        other.join()
        wait_until(lambda: process.check() and _is_active(base, slot))
    finally:
        stop.set()
        other.join()
        process.stop()
    wait_until(lambda: not _is_active(base, slot))


@pytest.mark.slow
def test_one_that_waits_for_what_goes_elsewhere(base: pg.Database, slot: str, tmp_path: Path) -> None:
    """A slot's position says nothing of a directory that others do not write into."""
    here, elsewhere, stop = tmp_path / "here", tmp_path / "elsewhere", threading.Event()
    limits = Limits(seconds=0.2)
    other = threading.Thread(
        target=Capture(base.dsn, slot, ["p"], elsewhere, limits=limits).run, kwargs={"stop": stop}
    )
    other.start()
    try:
        wait_until(lambda: _is_active(base, slot))
        base.execute("INSERT INTO t VALUES (1)")
        wait_until(lambda: bool(list_segments(elsewhere)))
        until = list_segments(elsewhere)[-1].end_lsn
        for directory in (here, elsewhere):
            process = CaptureProcess(Settings(base.dsn, slot, ("p",), str(directory), until_lsn=until))
            process.start()
            with contextlib.closing(_Stopping(process)):
                if directory == elsewhere:  # this one waits for the other, which has it already
                    process.wait()
                    continue
                with pytest.raises(CaptureError, match=r"another (client|directory)"):
                    process.wait()
        assert not list(here.glob("*.parquet"))
    finally:
        stop.set()
        other.join()


def test_why_it_failed(base: pg.Database, slot: str, tmp_path: Path) -> None:
    base.execute("INSERT INTO t VALUES (1)")
    Capture(base.dsn, slot, ["p"], tmp_path).run(until_lsn=now(base))
    process = CaptureProcess(Settings(base.dsn, slot, ("p", "q"), str(tmp_path)))
    process.start()
    with (
        contextlib.closing(_Stopping(process)),
        pytest.raises(CaptureError, match="segments of another source"),
    ):
        wait_until(lambda: not process.check())
    killed = CaptureProcess(Settings(base.dsn, slot, ("p",), str(tmp_path)))
    killed.start()
    with contextlib.closing(_Stopping(killed)):
        wait_until(lambda: _is_active(base, slot))
        assert killed._process is not None
        killed._process.kill()
        with pytest.raises(
            CaptureError,
            match=rf"slot {slot} into .* ended with an error: its process was killed \(SIGKILL\)",
        ):
            wait_until(lambda: not killed.check())
    with pytest.raises(ValueError, match=r"settings of the capture are wrong: .*'colour'"):
        CaptureProcess(Settings("", "s", ("p",), "d", more={"colour": 1}))


class _Stopping:
    """Stops a process when it is closed."""

    def __init__(self, process: CaptureProcess) -> None:
        self.close = process.stop
