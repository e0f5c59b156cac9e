"""Fixtures: a real server for each PostgreSQL version, a database for each test module, one Spark for all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pgoutput_fast.demo.servers import Server
from support import pg

if TYPE_CHECKING:
    from support.streaming import Streaming


def pytest_configure(config: pytest.Config) -> None:
    # A sanitizer is preloaded into this process (`make sanitize`), but the servers that it starts must not have
    # it. With several processes, the first process passes it on to the processes that run tests.
    runs_tests = "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", None)
    if runs_tests and "libasan" in os.environ.get("LD_PRELOAD", ""):
        del os.environ["LD_PRELOAD"]
    # This comes before a test imports these modules, so that their assertions print what they compare.
    pytest.register_assert_rewrite("support.oracle", "support.streaming")


def pytest_sessionstart(session: pytest.Session) -> None:
    # Without this, a runner without servers would skip nearly all tests and pass.
    missing = pg.missing_in_ci()
    if missing:
        raise pytest.UsageError(
            f"CI=true, but PostgreSQL {', '.join(map(str, missing))} cannot be run here; found: "
            f"{', '.join(map(str, pg.installations())) or 'none'}; {pg.HOW_TO_GET_SERVERS}"
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # This is not in the fixtures' decorators, so that the search for servers runs only if a test needs one.
    for fixture, oldest in (("server", 0), ("server_binary", pg.FIRST_BINARY_VERSION)):
        if fixture in metafunc.fixturenames:
            versions = [version for version in pg.installations() if version >= oldest]
            cases: list[Any] = [pytest.param(version, id=f"pg{version}") for version in versions]
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
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local Spark on two cores."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("pyspark")
    from pgoutput_fast.demo.java import JavaNotFoundError, spark_environment

    try:
        environment = spark_environment()
    except JavaNotFoundError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        session = (
            SparkSession.builder.master("local[2]")
            .appName("pgoutput_fast tests")
            .config("spark.ui.enabled", False)
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            # Tests that count the stages of a query may run after thousands of other stages.
            .config("spark.ui.retainedStages", 20_000)
            .config("spark.ui.retainedJobs", 20_000)
            # The optimising compiler and a concurrent collector do not pay off in short tests.
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .config("spark.sql.shuffle.partitions", 2)
            .config("spark.sql.session.timeZone", "UTC")
            # mapInArrow matches columns by position. Without this setting a wrong schema gives wrong values.
            .config("spark.sql.execution.arrow.pyspark.validateSchema.enabled", True)
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
        gateway: Any = session.sparkContext._gateway
        yield session
        session.stop()
        # stop() leaves the JVM running until this process ends.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(120)


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
