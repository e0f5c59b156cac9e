"""What a person sees of a capture and of a snapshot: never a secret, whatever the connection string is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pgoutput_fast.capture import Capture, Snapshot
from pgoutput_fast.postgres.session import describe_database
from support import pg

SECRETS = [
    "postgresql://me:s3cret@db.example/shop",
    "postgresql://me:s3@cret@db.example/shop",
    "postgresql://me:12/s3cret@db.example/shop",
    "postgresql://me:s3cret@db.example/shop?sslpassword=s3cret",
    "postgresql://me:s3?cret@db.example/shop",
    "postgresql://me:s3#cret@db.example/shop",
    "host=db.example dbname=shop password=s3cret",
    "host=db.example password='s3 cret' dbname=shop",
    "host=db.example password=s3 cret",
    "dbname='password=s3cret host=db.example'",
    "dbname='postgresql://me:s3cret@db.example/shop'",
    "host=db.example passfile=/s3cret options='-c x.y=s3cret'",
    "s3cret",
    "",
]


@pytest.mark.parametrize("dsn", SECRETS)
def test_a_capture_shows_no_password(dsn: str, tmp_path: Path) -> None:
    capture = Capture(dsn, "to<lake", ["shop", "a\x1bb"], tmp_path / "segments")
    for text in (repr(capture), capture._repr_html_()):
        assert "cret" not in text
        assert ":12" not in text
        assert text.isprintable()
        assert "segments" in text
    assert "to&lt;lake" in capture._repr_html_()


def test_what_a_capture_shows(tmp_path: Path) -> None:
    capture = Capture("postgresql://me:s3cret@db.example:5433/shop", "to_lake", ["shop", "other"], tmp_path)
    assert repr(capture) == (
        "<Capture: slot to_lake, of shop at db.example:5433, publications shop, other, through walsender, "
        f"to {tmp_path}>"
    )
    assert re.search("<td[^>]*>of</td><td[^>]*>shop at db.example:5433</td></tr>", capture._repr_html_())
    many = Capture("dbname=shop", "s", [f"p{number}" for number in range(1000)], tmp_path)
    assert "publications p0, p1, p2, p3, p4 and 995 more" in repr(many)


def test_a_snapshot_shows_its_tables_and_no_password(servers: pg.Servers) -> None:
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[max(servers)])
    try:
        database.execute(
            'CREATE TABLE "<b>" (id int, t text)',
            "CREATE TABLE orders (id int)",
            'CREATE PUBLICATION p FOR TABLE orders, "<b>"',
        )
        # The server trusts its clients, so it does not read the password.
        dsn = f"{database.dsn} password=s3cret"
        with Snapshot(dsn, ["p"]) as snapshot:
            shown, in_notebook = repr(snapshot), snapshot._repr_html_()
        assert shown.startswith(f"<Snapshot: open, {database.name} at 127.0.0.1:")
        assert f", slot {snapshot.slot}, 2 tables; " in shown
        assert 'public."<b>"' in shown
        assert "public.&quot;&lt;b&gt;&quot;</td><td>2</td>" in in_notebook
        assert "s3cret" not in shown + in_notebook
        assert repr(snapshot).startswith("<Snapshot: closed, ")
    finally:
        database.drop()


def test_databases_without_secrets_are_shown() -> None:
    assert describe_database("host=/var/run/postgresql dbname=shop") == "shop at /var/run/postgresql"
    assert describe_database("port=5433") == "the default database at port 5433"
    assert describe_database("postgresql://[::1]:5433/shop") == "shop at ::1:5433"
