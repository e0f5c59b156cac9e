"""Passwords that change, services and TLS: everything that connects can use them, and nothing shows a password."""

from __future__ import annotations

import copy
import logging
import pickle
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import (
    Capture,
    Dsn,
    PasswordError,
    Snapshot,
    check,
    create_slot,
    list_slots,
)
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.mirror import Mirror, status_of
from pgoutput_fast.postgres.passwords import PasswordCommand
from pgoutput_fast.postgres.session import DsnError, connect, describe_database
from support import pg
from support.capturing import drop_when_free, wait_until
from support.mirrors import Following, current_of


class Tokens:
    """Passwords of the role `reader`. Each one is valid for one connection."""

    def __init__(self, server: Server) -> None:
        self._connection = server.connect(host=str(server.socket_directory), dbname="shop")
        self._connection.autocommit = True
        self.made: list[str] = []

    def __call__(self) -> str:
        token = f"sesame {len(self.made)}"
        self.made.append(token)
        with self._connection.cursor() as cursor:
            cursor.execute("ALTER ROLE reader PASSWORD %s", (token,))
        return token

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def shop() -> Iterator[Server]:
    """A server with a database `shop` and a role `reader`, who needs a password."""
    with Server(pg.installations()[max(pg.installations())]) as server:
        hba = server.data_directory / "pg_hba.conf"
        hba.write_text(
            "local all all trust\nhost all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 md5\n"
        )
        run(server, "postgres", "SELECT pg_reload_conf()", "CREATE DATABASE shop")
        run(
            server,
            "shop",
            "CREATE ROLE reader LOGIN REPLICATION",
            "CREATE TABLE orders (id int PRIMARY KEY, note text)",
            "INSERT INTO orders VALUES (1, 'a')",
            "GRANT SELECT ON orders TO reader",
            "CREATE PUBLICATION shop FOR ALL TABLES",
        )
        yield server


@pytest.fixture
def tokens(shop: Server) -> Iterator[Tokens]:
    tokens = Tokens(shop)
    yield tokens
    tokens.close()
    for slot in list_slots(shop.dsn):
        drop_when_free(shop.dsn, slot.name)


def run(server: Server, database: str, *statements: str) -> None:
    connection = server.connect(dbname=database)
    connection.autocommit = True
    with connection.cursor() as cursor:
        for each in statements:
            cursor.execute(each)
    connection.close()


def of_reader(server: Server) -> str:
    return f"host=127.0.0.1 port={server.port} dbname=shop user=reader sslmode=disable"


def ids(target: Path) -> list[int]:
    return sorted(current_of(target, "public.orders")["id"].to_pylist())


def test_a_mirror_asks_at_each_connection(
    shop: Server, tokens: Tokens, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    dsn = Dsn(of_reader(shop), tokens)
    with Mirror(dsn, "to_lake", ["shop"], tmp_path / "lake", seconds=0.2) as mirror:
        mirror.run(until_lsn="now")
        before = len(tokens.made)
        with Following(mirror) as following:
            run(shop, "shop", "INSERT INTO orders VALUES (2, 'b')")
            following.until(lambda: ids(tmp_path / "lake") == [1, 2])
            # The capture, in its own process, connects again.
            run(
                shop,
                "postgres",
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active",
            )
            run(shop, "shop", "INSERT INTO orders VALUES (3, 'c')")
            following.until(lambda: ids(tmp_path / "lake") == [1, 2, 3])
        assert [each.lag_bytes is None for each in status_of(tmp_path / "lake", dsn)] == [False]
        assert len(tokens.made) > before + 2
        said = [repr(mirror), mirror._repr_html_(), caplog.text, *capfd.readouterr()]
    assert "sesame" not in "".join(said)
    assert not any(
        "sesame" in path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()
    )
    run(shop, "shop", "DELETE FROM orders WHERE id > 1")


def test_the_others_ask_too(shop: Server, tokens: Tokens, tmp_path: Path) -> None:
    dsn = Dsn(of_reader(shop), tokens)
    assert [each for each in check(dsn, ["shop"]).findings if each.level == "error"] == []
    create_slot(dsn, "captured")
    Capture(dsn, "captured", ["shop"], tmp_path / "segments").run(until_lsn="now")
    with Snapshot(dsn, ["shop"]) as snapshot:
        assert sum(batch.num_rows for _, batch in snapshot.read(threads=2)) == 1
        with pytest.raises(ValueError, match="password file"):
            snapshot.spark_options()
    assert list(pgo.follow(dsn, "followed", ["shop"], until_lsn="now")) == []
    assert len(tokens.made) == len(set(tokens.made)) > 5


def test_the_command_line_runs_a_command(shop: Server, tmp_path: Path) -> None:
    token = tmp_path / "a token"
    token.write_text("sesame\n")
    run(shop, "shop", "ALTER ROLE reader PASSWORD 'sesame'")
    call = [sys.executable, "-m", "pgoutput_fast", "slots", "ls", "--dsn", of_reader(shop)]
    command = f"cat {shlex.quote(str(token))}"

    def said(*more: str) -> tuple[int, str]:
        done = subprocess.run([*call, *more], text=True, capture_output=True)
        return done.returncode, done.stdout + done.stderr

    assert said("--password-command", command)[0] == 0
    assert said()[0] == 1
    assert said("--password-command", "'") == (2, "pgoutput-fast: --password-command: No closing quotation\n")
    token.write_text("open sesame")
    status, text = said("--password-command", command)
    assert status == 1
    assert "password authentication failed" in text
    assert "open" not in text


def test_a_mirror_of_the_command_line(shop: Server, tokens: Tokens, tmp_path: Path) -> None:
    run(shop, "shop", "ALTER ROLE reader PASSWORD 'sesame'")
    given = ["--dsn", "-", "--slot", "to_lake", "--publication", "shop", "--target", str(tmp_path / "lake")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pgoutput_fast", "mirror", *given),
            *("--until", "now", "--password-command", "printf sesame"),
        ],
        input=of_reader(shop),
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert "sesame" not in done.stdout + done.stderr
    assert ids(tmp_path / "lake") == [1]


def test_a_command_that_hangs_when_a_mirror_is_stopped(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    given = ["--slot", "to_lake", "--publication", "shop", "--target", str(tmp_path / "lake")]
    words = ["--dsn", "host=127.0.0.1 port=1", "--password-command", f"sh -c 'touch {asked}; exec sleep 50'"]
    with subprocess.Popen([sys.executable, "-m", "pgoutput_fast", "mirror", *given, *words]) as process:
        wait_until(asked.exists, seconds=60)
        process.terminate()
        assert process.wait(40) == 0


def fail() -> str:
    raise RuntimeError("the token sesame is too old")


@pytest.mark.parametrize(
    ("password", "what"),
    [
        (fail, "raised RuntimeError"),
        (lambda: "", "an empty one"),
        (lambda: b"bytes", "a bytes"),
        (PasswordCommand("sh -c 'exit 3'"), r"\(sh\) ended with status 3"),
        (PasswordCommand("/nonexistent x"), "cannot be run"),
        (PasswordCommand("true"), "it printed nothing"),
        (PasswordCommand("printf 'sesame\\nsesame\\n'"), "it printed more than one line"),
        (PasswordCommand("printf 'sesame\\377'"), "it printed bytes that are not UTF-8"),
    ],
)
def test_no_password(password: Any, what: str) -> None:
    with pytest.raises(PasswordError, match=what) as caught:
        connect(Dsn("host=127.0.0.1 port=1", password))
    assert "sesame" not in str(caught.value)
    assert isinstance(caught.value, psycopg2.OperationalError)


def test_a_connection_string_with_a_function() -> None:
    with pytest.raises(TypeError, match="a function"):
        Dsn("dbname=shop", "sesame")  # type: ignore[arg-type]
    with pytest.raises(DsnError, match="leave one of them out"):
        connect(Dsn("host=127.0.0.1 port=1 password=x", lambda: "y"))
    with pytest.raises(ValueError, match="empty"):
        PasswordCommand(" ")
    dsn = Dsn("dbname=shop", fail)
    assert copy.deepcopy(dsn) is dsn
    assert pickle.loads(pickle.dumps(dsn)) == "dbname=shop"
    with pytest.raises(PasswordError):
        pickle.loads(pickle.dumps(dsn)).ask()


# ---- services ----------------------------------------------------------------------------------------------------


def test_a_service_file(
    shop: Server, tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(shop, "shop", "ALTER ROLE reader PASSWORD 'sesame'")
    file, passwords = tmp_path / "service.conf", tmp_path / "pgpass"
    passwords.write_text(f"*:{shop.port}:*:reader:sesame\n")
    passwords.chmod(0o600)
    # The options and the name must stay: they are no part of the connection string.
    options = "options=-c geqo_threshold=7 -c DateStyle=German\napplication_name=of_the_file\n"
    places = of_reader(shop).replace(" ", "\n")
    file.write_text(f"[shop]\n{places}\npassfile={passwords}\n{options}")
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    dsn = "service=shop"
    connection = connect(dsn)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('geqo_threshold'), current_setting('application_name'), "
            "current_setting('DateStyle')"
        )
        assert cursor.fetchone() == ("7", "of_the_file", "ISO, DMY")
    connection.close()
    assert [each for each in check(dsn, ["shop"]).findings if each.level == "error"] == []
    with Mirror(dsn, "to_lake", ["shop"], tmp_path / "lake", seconds=0.2) as mirror:
        assert "of service shop" in repr(mirror)
        mirror.run(until_lsn="now")
        mirror.run(until_lsn="now")
    assert ids(tmp_path / "lake") == [1]
    assert list(pgo.follow(dsn, "followed", ["shop"], until_lsn="now")) == []
    with Snapshot(dsn, ["shop"]) as snapshot:
        assert sum(batch.num_rows for _, batch in snapshot.read(threads=2)) == 1
    monkeypatch.setenv("PGSERVICE", "shop")
    assert [each.name for each in list_slots("")] == ["followed", "to_lake"]
    assert describe_database("service=shop dbname=other") == "other"


def test_settings_of_the_environment(shop: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c geqo_threshold=7 -c DateStyle=German")
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    connection = connect(f"{shop.dsn} client_encoding=LATIN2")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('geqo_threshold'), current_setting('DateStyle'), "
            "current_setting('client_encoding')"
        )
        assert cursor.fetchone() == ("7", "ISO, DMY", "UTF8")
    connection.close()


# ---- TLS ---------------------------------------------------------------------------------------------------------


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a server (127.0.0.1), of a client (reader) and of another client, and that of their authority."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    directory = tmp_path_factory.mktemp("certificates")

    def key(name: str) -> list[str]:
        return ["-newkey", "rsa:2048", "-nodes", "-keyout", str(directory / f"{name}.key")]

    for name in ("ca", "other_ca"):
        openssl(
            *("req", "-x509", *key(name), "-subj", f"/CN={name}"),
            *("-days", "2", "-out", str(directory / f"{name}.crt")),
        )
    for name, subject in (("server", "db.example"), ("reader", "reader"), ("somebody", "somebody")):
        request, extensions = directory / f"{name}.csr", directory / f"{name}.ext"
        extensions.write_text("subjectAltName = IP:127.0.0.1\n" if name == "server" else "\n")
        openssl("req", *key(name), "-subj", f"/CN={subject}", "-out", str(request))
        openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(directory / "ca.crt")),
            *("-CAkey", str(directory / "ca.key"), "-CAcreateserial", "-days", "2"),
            *("-extfile", str(extensions), "-out", str(directory / f"{name}.crt")),
        )
    return directory


@pytest.fixture(scope="module")
def tls(certificates: Path) -> Iterator[Server]:
    """A server that wants certificates of clients."""
    for installation in reversed(pg.installations().values()):
        told = subprocess.run(
            [installation.bindir / "pg_config", "--configure"], capture_output=True, text=True
        )
        if "openssl" in told.stdout:
            break
    else:
        pytest.skip("no PostgreSQL with TLS")
    with Server(installation) as server:
        data = server.data_directory
        for name in ("server.crt", "server.key", "ca.crt"):
            shutil.copy(certificates / name, data / name)
            owner = data.stat()
            shutil.chown(data / name, owner.st_uid, owner.st_gid)
            (data / name).chmod(0o600)
        run(server, "postgres", "CREATE ROLE reader LOGIN REPLICATION")
        (data / "pg_hba.conf").write_text("local all all trust\nhostssl all all 127.0.0.1/32 cert\n")
        with open(data / "postgresql.conf", "a") as file:
            file.write("ssl = on\nssl_ca_file = 'ca.crt'\n")
        server.stop()
        server.start()
        with server.connect(host=str(server.socket_directory)) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE orders (id int PRIMARY KEY)")
            cursor.execute("INSERT INTO orders VALUES (1)")
            cursor.execute("GRANT SELECT ON orders TO reader")
            cursor.execute("CREATE PUBLICATION shop FOR ALL TABLES")
        connection.close()
        yield server


def with_tls(
    server: Server, certificates: Path, *, client: str = "reader", ca: str = "ca", more: str = ""
) -> str:
    files = [f"sslrootcert={certificates / ca}.crt"]
    if client:
        files += [f"sslcert={certificates / client}.crt", f"sslkey={certificates / client}.key"]
    given = f"port={server.port} dbname=postgres user=reader sslmode=verify-full {' '.join(files)}"
    return f"{more or 'host=127.0.0.1'} {given}"


def test_a_mirror_with_certificates(tls: Server, certificates: Path, tmp_path: Path) -> None:
    dsn = with_tls(tls, certificates)
    with Mirror(dsn, "to_lake", ["shop"], tmp_path / "lake", seconds=0.2) as mirror:
        mirror.run(until_lsn="now")
        mirror.run(until_lsn="now")
    assert ids(tmp_path / "lake") == [1]
    with Snapshot(dsn, ["shop"]) as snapshot:
        assert sum(batch.num_rows for _, batch in snapshot.read(threads=2)) == 1
    drop_when_free(dsn, "to_lake")


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"ca": "other_ca"}, "certificate verify failed"),
        ({"more": "host=localhost hostaddr=127.0.0.1"}, "does not match host name"),
        ({"client": ""}, "certificate"),
        ({"client": "somebody"}, "authentication failed for user"),
    ],
)
def test_certificates_that_do_not_fit(
    tls: Server, certificates: Path, tmp_path: Path, more: dict[str, str], what: str
) -> None:
    with pytest.raises(psycopg2.OperationalError, match=what):
        Capture(with_tls(tls, certificates, **more), "s", ["shop"], tmp_path).run(retry_seconds=0)
