"""Fixtures: a real server for each PostgreSQL version, a database for each test module, one Spark for all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import pg
from pgoutput_fast.demo.servers import Server

if TYPE_CHECKING:
    from streaming import Streaming


def pytest_configure(config: pytest.Config) -> None:
    # A sanitizer is preloaded into this process (`make sanitize`), and not meant for the servers that it starts. Of
    # several processes the first one hands it on to those that run tests.
    runs_tests = "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", None)
    if runs_tests and "libasan" in os.environ.get("LD_PRELOAD", ""):
        del os.environ["LD_PRELOAD"]
    # Before a test imports them, so that their assertions say what they compared.
    pytest.register_assert_rewrite("oracle", "streaming")


def pytest_sessionstart(session: pytest.Session) -> None:
    # Without this, a runner on which no server could be fetched would pass by skipping nearly everything.
    missing = pg.missing_in_ci()
    if missing:
        raise pytest.UsageError(
            f"CI=true, but PostgreSQL {', '.join(map(str, missing))} cannot be run here; found: "
            f"{', '.join(map(str, pg.installations())) or 'none'}; {pg.HOW_TO_GET_SERVERS}"
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # Here and not in the fixtures' decorators, so that servers are looked for only if a test wants one.
    for fixture, oldest in (("server", 0), ("server_binary", pg.FIRST_BINARY_VERSION)):
        if fixture in metafunc.fixturenames:
            versions = [version for version in pg.installations() if version >= oldest]
            cases: list[Any] = [pytest.param(version, id=f"pg{version}") for version in versions]
            none = pytest.param(None, marks=pytest.mark.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}"))
            metafunc.parametrize(fixture, cases or [none], indirect=True, scope="session")


@pytest.fixture(scope="session")
def servers() -> Iterator[pg.Servers]:
    """Version -> running server; started on first use."""
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
            # Tests that count a query's stages may come behind thousands of them.
            .config("spark.ui.retainedStages", 20_000)
            .config("spark.ui.retainedJobs", 20_000)
            # Tests are too short to repay the optimising compiler or a concurrent collector.
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .config("spark.sql.shuffle.partitions", 2)
            .config("spark.sql.session.timeZone", "UTC")
            # mapInArrow matches columns by position: without this a wrong schema gives wrong values.
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
    """A slot of the module's database that streams what is larger than 64 kB, and sessions to work on it."""
    if database.version < 14:
        pytest.skip("transactions are streamed since 14")
    from streaming import streaming

    with streaming(database) as opened:
        yield opened


@pytest.fixture
def two_phase(database: pg.Database) -> Iterator[Streaming]:
    """The same, whose slot sends what is prepared."""
    if database.version < 15:
        pytest.skip("prepared transactions are sent since 15")
    from streaming import streaming

    with streaming(database, two_phase=True) as opened:
        yield opened
