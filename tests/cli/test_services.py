"""`pgoutput-fast capture`, `mirror` and `demo`: wrong usage, a server that is away, what is missing."""

from __future__ import annotations

import inspect
import io
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from pgoutput_fast.capture import Capture
from pgoutput_fast.capture.retries import RETRY_SECONDS
from pgoutput_fast.cli.app import app
from pgoutput_fast.cli.capture import capture
from pgoutput_fast.cli.main import main
from pgoutput_fast.cli.mirror import mirror
from pgoutput_fast.demo import run as demo
from pgoutput_fast.mirror import Mirror
from pgoutput_fast.tables.formats import names_of


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The commands set handlers of signals."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(each) for each in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize(("command", "called"), [(capture, Capture), (mirror, Mirror)])
def test_defaults_are_those_of_the_class(command: Callable[..., Any], called: type) -> None:
    """The commands have their own, so that a help needs no import of what takes time."""
    options = inspect.signature(command).parameters
    service = inspect.signature(called).parameters
    optional = [
        name
        for name, option in options.items()
        if option.default is not None
        and name in service
        and service[name].default is not inspect.Parameter.empty
    ]
    assert {"seconds" if command is mirror else "receive_timeout", "adopt"} <= set(optional)
    assert {name: options[name].default for name in optional} == {
        name: service[name].default for name in optional
    }
    assert options["retry_seconds"].default == RETRY_SECONDS


def test_formats_of_a_mirror() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    (option,) = [option for option in commands["mirror"].params if option.name == "format"]
    assert option.metavar.split("|") == names_of("current")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["capture"], "these arguments are missing: --slot, --publication, --path"),
        (["mirror", "--slot", "s"], "these arguments are missing: --publication, --target"),
        (
            ["capture", "--nothing"],
            "--nothing",
        ),
        (
            ["mirror", "--threads", "x"],
            "Invalid value for '--threads': ",
        ),
        (
            ["demo", "--orders", "x"],
            "Invalid value for '--orders': ",
        ),
        (
            ["capture", "-s", "s", "-p", "p", "--path", "t", "--seconds", "nan"],
            "the limits of a segment must be positive",
        ),
        (
            ["mirror", "-s", "s", "-p", "p", "--target", "t", "--dsn", "-"],
            "the standard input, which is empty",
        ),
        (["mirror", "--slot", "s", "-p", "p", "--target", "t", "--format", "csv"], "not 'csv'"),
        (
            ["mirror", "-s", "s", "-p", "p", "--target", "t", "--iceberg-catalog", "=1"],
            "=1 is not NAME=VALUE",
        ),
        (
            ["mirror", "-s", "s", "-p", "p", "--target", "t", "--merge", "on_read", "--merge", "a.b=on_read"],
            "on_read is not TABLE=on_read or TABLE=on_write",
        ),
        (
            ["mirror", "-s", "s", "-p", "p", "--target", "t", "--merge", 'a."="=late'],
            "merge must be one of 'on_write', 'on_read', not 'late'",
        ),
    ],
)
def test_wrong_usage(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(given) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("program", [["capture", "--path"], ["mirror", "--target"]])
def test_a_server_that_is_not_there(
    program: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--slot",
        "s",
        "--publication",
        "p",
        "--dsn",
        "host=/nowhere/topsecret password=topsecret",
        "--quiet",
    ]
    words = [*program, str(tmp_path / "out"), *words, "--retry-seconds", "0"]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert said.startswith("pgoutput-fast: ")
    assert said.count("\n") == 1
    assert main([*words, "--debug"]) == 1
    debugged = capsys.readouterr().err
    assert debugged.startswith("Traceback")
    assert debugged.splitlines()[-1] == said.strip()
    assert "/nowhere/***/" in said
    assert "topsecret" not in said + debugged


@pytest.mark.parametrize("below", ["", "below"])
def test_a_capture_into_a_file(below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so before it asks the server."""
    (tmp_path / "file").write_text("mine")
    words = ["--slot", "s", "--publication", "p", "--dsn", "host=/nowhere", "--quiet"]
    path = tmp_path / "file" / below
    assert main(["capture", "--path", str(path), *words]) == 1
    said = capsys.readouterr().err
    assert (
        said
        == f"pgoutput-fast: the target {path} is a file, or lies below one: give a directory, which need not exist\n"
    )


def test_the_demo_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And leaves the log of this process as it was."""
    monkeypatch.setattr(demo, "find_installations", list)
    assert main(["demo"]) == 1
    assert "pip install" in capsys.readouterr().out
    assert logging.getLogger("pgoutput_fast").isEnabledFor(logging.WARNING)
