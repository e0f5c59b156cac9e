"""Fixtures: a real server for each PostgreSQL version, a database for each test module, one Spark for all."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol

from pgoutput_fast.demo.servers import Server
from support import pg, sessions

if TYPE_CHECKING:
    from support.streaming import Streaming


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--spark-session",
        choices=("classic", "connect"),
        default="classic",
        help="the kind of the session of Spark; with connect, tests that are about classic sessions are left out",
    )
    parser.addoption(
        "--whole",
        action="store_true",
        help="run the tests that are marked as exhaustive, too, and all server versions",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("spark_session") == "connect":
        for item in items:
            for mark in item.iter_markers("classic"):
                item.add_marker(pytest.mark.skip(f"on Spark Connect: {mark.args[0]}"))
    if not config.getoption("whole"):
        for item in items:
            if item.get_closest_marker("exhaustive") or _is_between(item):
                item.add_marker(pytest.mark.skip("make test-whole runs it"))


def _is_between(item: pytest.Item) -> bool:
    """Whether a test that needs few server versions has another one."""
    if item.get_closest_marker("few_servers") is None:
        return False
    parameters = (
        item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    )
    version = parameters.get("server", parameters.get("server_binary"))
    return version is not None and version not in pg.few_versions()


def pytest_configure(config: pytest.Config) -> None:
    # A sanitizer is preloaded into this process (`make sanitize`), but the servers that it starts must not have
    # it. With several processes, the first process passes it on to the processes that run tests.
    runs_tests = "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", None)
    if runs_tests and "libasan" in os.environ.get("LD_PRELOAD", ""):
        del os.environ["LD_PRELOAD"]
    # To make a database copies a thousand files. That takes 0.03 s of CPU time in memory, and 0.06 to 0.2 s on a disk.
    # All servers of five processes need more than a GB.
    with contextlib.suppress(OSError):
        if shutil.disk_usage("/dev/shm").free > 8 << 30:
            os.environ.setdefault("PGOUTPUT_FAST_SERVER_FILES", "/dev/shm")
    # This comes before a test imports these modules, so that their assertions print what they compare.
    pytest.register_assert_rewrite("support.oracle", "support.streaming", "support.written_tables")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # This makes a million objects that stay. To look for garbage among them takes two fifths of the CPU time.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from support.distribution import LongestFirst

    return LongestFirst(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    # Without this, a runner without servers would skip nearly all tests and pass.
    missing = pg.missing_in_ci()
    if missing:
        raise pytest.UsageError(
            f"CI=true, but PostgreSQL {', '.join(map(str, missing))} cannot be run here; found: "
            f"{', '.join(map(str, pg.installations())) or 'none'}; {pg.HOW_TO_GET_SERVERS}"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leaves out tests that begin too late, where a run has an end, as CI. The last lines count them."""
    until = os.environ.get("PGOUTPUT_FAST_TESTS_UNTIL")
    if until is not None and time.time() > float(until):
        pytest.skip("no time was left for it (PGOUTPUT_FAST_TESTS_UNTIL)")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    # If other processes ran the tests, this one does not know whether they needed a server.
    if config.getoption("numprocesses", None) or pg.installations.cache_info().currsize:
        for sentence in pg.untested():
            terminalreporter.write_line(sentence, yellow=True)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Runs a test again that met a limit of Spark, which no setting changes: a worker has ten seconds to start.

    A process may need longer for that on a machine that does much else. So the test waits until that has passed.
    """
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for left in reversed(range(5)):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if left == 0 or not any(map(_met_the_limit, reports)):
            break
        item._initrequest()  # type: ignore[attr-defined]
        _forget_failed_fixtures(item)
        time.sleep(30)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _forget_failed_fixtures(item: pytest.Item) -> None:
    """A fixture of a module or of the session would raise its old error again."""
    for definitions in item._fixtureinfo.name2fixturedefs.values():  # type: ignore[attr-defined]
        for each in definitions:
            if each.cached_result is not None and each.cached_result[2] is not None:
                each.finish(item._request)  # type: ignore[attr-defined]


def _met_the_limit(report: pytest.TestReport) -> bool:
    said = [report.longreprtext, *(text for _, text in report.sections)]
    limits = ("Python worker failed to connect back", "waiting for the Python worker to connect back")
    return report.failed and any(limit in each for limit in limits for each in said)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # This is not in the fixtures' decorators, so that the search for servers runs only if a test needs one.
    for fixture, oldest in (("server", 0), ("server_binary", pg.FIRST_BINARY_VERSION)):
        if fixture in metafunc.fixturenames:
            versions = [version for version in pg.installations() if version >= oldest]
            # `make test` runs a test that is marked so on the newest version alone.
            one = metafunc.definition.get_closest_marker("newest_server") is not None
            first = set(versions[-1:]) if one else pg.first_versions()
            if metafunc.config.option.markexpr == "not slow":
                # To make thousands of tests only to leave them out takes each process a second.
                versions = [version for version in versions if version in first]
            cases: list[Any] = [
                pytest.param(version, id=f"pg{version}", marks=[] if version in first else [pytest.mark.slow])
                for version in versions
            ]
            none = pytest.param(None, marks=pytest.mark.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}"))
            metafunc.parametrize(fixture, cases or [none], indirect=True, scope="session")


@pytest.fixture(scope="session")
def servers() -> Iterator[pg.Servers]:
    """{version: running server}. A server is started at its first use."""
    servers = pg.Servers()
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, servers: pg.Servers) -> Server:
    """Each available version in turn."""
    return servers[request.param]


@pytest.fixture(scope="session")
def server_binary(request: pytest.FixtureRequest, servers: pg.Servers) -> Server:
    """Each available version that can send binary values (14 and later) in turn."""
    return servers[request.param]


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[pg.Database]:
    """A fresh database per module, on each version."""
    database = pg.Database(server)
    yield database
    database.drop()


@pytest.fixture(scope="module")
def database_binary(server_binary: Server) -> Iterator[pg.Database]:
    """A fresh database per module, on each version that can send binary values."""
    database = pg.Database(server_binary)
    yield database
    database.drop()


@pytest.fixture(scope="session")
def connect_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of Spark Connect on two cores."""
    with sessions.connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session of a Spark on two cores, of the kind that `--spark-session` says."""
    if request.config.getoption("spark_session") == "connect":
        address = request.getfixturevalue("connect_address")
        with sessions.connect_mode(), sessions.connect_session(address) as session:
            yield session
    else:
        with sessions.classic_session(tmp_path_factory.mktemp("warehouse")) as session:
            yield session


@pytest.fixture(params=["text", "binary"])
def format_(request: pytest.FixtureRequest, database: pg.Database) -> str:
    """Each form in which the module's database can send values."""
    if request.param == "binary" and database.version < pg.FIRST_BINARY_VERSION:
        pytest.skip("binary values exist since 14")
    return str(request.param)


@pytest.fixture
def stream(database: pg.Database) -> Iterator[Streaming]:
    """A slot of the module's database that streams transactions larger than 64 kB, and sessions that write."""
    if database.version < 14:
        pytest.skip("transactions are streamed since 14")
    from support.streaming import streaming

    with streaming(database) as opened:
        yield opened


@pytest.fixture
def two_phase(database: pg.Database) -> Iterator[Streaming]:
    """As `stream`, with a slot that sends prepared transactions."""
    if database.version < 15:
        pytest.skip("prepared transactions are sent since 15")
    from support.streaming import streaming

    with streaming(database, two_phase=True) as opened:
        yield opened
