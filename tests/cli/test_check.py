"""`pgoutput-fast check` says what a capture lacks, and its exit status says whether it can begin."""

from __future__ import annotations

import json

import pytest

from pgoutput_fast.cli.main import main
from support.mirrors import Place, place

__all__ = ["place"]


def test_ready(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION mirrored FOR TABLE t")
    words = ["check", "--dsn", place.database.dsn, "--publication", "mirrored"]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "ready"
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["tables"]) == (True, ["public.t"])


def test_a_publication_that_is_missing(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--dsn", place.database.dsn, "-p", "nothing"]) == 1
    shown = capsys.readouterr()
    assert "nothing" in shown.out + shown.err
    assert "Traceback" not in shown.err


def test_no_publication(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 2
    assert capsys.readouterr().err == "pgoutput-fast: this argument is missing: --publication\n"


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--dsn", "host=127.0.0.1 port=1 password=secret", "-p", "orders"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "secret" not in error
