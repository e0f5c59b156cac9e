"""A connection string that cannot be read is not repeated: neither it nor a piece of it is in what is said of it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from pgoutput_fast.capture import Capture, Snapshot, check, create_slot, drop_slot, list_slots
from pgoutput_fast.capture.process import Settings
from pgoutput_fast.postgres.session import DsnError, connect, current_lsn

# Each as somebody may write it whose password is or has "sesame".
MALFORMED = {
    "host=h password=open sesame": 'no "="',
    "host=h password='open sesame": "quote is not closed",
    "host=h password=open sesame=1": "does not know an option",
    "sesame": 'no "="',
    "postgresql://u:open%zzsesame@h/db": "%25",
    "postgresql://u:open%00sesame@h/db": "%00",
    "postgresql://u:p@h/db?sesame": "name=value",
    "postgresql://u:p@h/db?a=b=sesame": "name=value",
    "postgresql://u:p@h/db?sesame=1": "does not know an option",
    "postgresql://u:sesame@[::1/db": '"]"',
    "postgresql://u:sesame@[::1]x/db": "neither a port nor a path",
    "postgresql://u:open@sesame@h/db": "%40",
    "postgresql://u:open/sesame@h/db": "%2F",
    "postgresql://u:sesame/open@h/db": "%2F",
    "postgresql://u:12/sesame@h/db": "%2F",
    "jdbc:postgresql://h:5432/db?user=u&password=sesame": "libpq's begins with postgresql://",
    "JDBC:postgresql://h/db": "libpq's begins with postgresql://",
    "postgresql+psycopg2://u:sesame@h/db": "libpq's begins with postgresql://",
}


@pytest.mark.parametrize(("dsn", "what"), MALFORMED.items())
def test_what_is_wrong_is_said_without_its_text(dsn: str, what: str) -> None:
    with pytest.raises(DsnError) as caught:
        connect(dsn)
    said = str(caught.value)
    assert what in said
    assert "dsn" in said
    assert "sesame" not in said
    assert "open" not in said
    assert isinstance(caught.value, psycopg2.Error)
    assert isinstance(caught.value, ValueError)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    "dsn",
    [
        "host=127.0.0.1,/tmp port=9,9 user=x connect_timeout=1",
        "host=@abstract port=9 user=x",
        "postgresql://u:p%40q%2F@127.0.0.1:9/a%40b",
    ],
)
def test_what_can_be_read_is_read(dsn: str) -> None:
    with pytest.raises(psycopg2.OperationalError):
        connect(dsn)


BAD = "host=h password=open sesame"


@pytest.mark.parametrize(
    "call",
    [
        lambda path: Capture(BAD, "s", ["p"], path).run(retry_seconds=0),
        lambda path: Capture(BAD, "s", ["p"], path, through="sql").run(retry_seconds=0),
        lambda path: Snapshot(BAD, ["p"]),
        lambda path: check(BAD, ["p"]),
        lambda path: create_slot(BAD, "s"),
        lambda path: drop_slot(BAD, "s"),
        lambda path: list_slots(BAD),
        lambda path: current_lsn(BAD),
    ],
)
def test_whoever_connects_says_so(
    call: Callable[[Path], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(DsnError) as caught:
        call(tmp_path)
    assert "sesame" not in str(caught.value) + caplog.text


@pytest.mark.parametrize("until", [[], ["--until", "now"]])
@pytest.mark.unsanitized
def test_the_command_says_so(tmp_path: Path, until: list[str]) -> None:
    arguments = ["--slot", "s", "--publication", "p", "--path", str(tmp_path), "--retry-seconds", "0", *until]
    done = subprocess.run(
        [sys.executable, "-m", "pgoutput_fast", "capture", *arguments],
        env={**os.environ, "PGOUTPUT_FAST_DSN": BAD},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("pgoutput-fast: ")
    assert "sesame" not in done.stderr + done.stdout


@pytest.mark.unsanitized
def test_spark_s_snapshot_says_so() -> None:
    pytest.importorskip("pyspark")
    from pgoutput_fast.spark.source.snapshot import plan_snapshot

    with pytest.raises(RuntimeError, match="cannot be read") as caught:
        plan_snapshot({"mode": "snapshot", "dsn": BAD, "table": "public.t"})
    assert "sesame" not in str(caught.value)


def test_settings_do_not_print_it() -> None:
    given = Settings("host=h password=sesame", "s", ("p",), "s3://key:sesame@bucket/x?secret_key=sesame")
    assert "sesame" not in repr(given)
    assert "s3://bucket/x" in repr(given)
    assert "sesame" in json.dumps(given.to_dict())
