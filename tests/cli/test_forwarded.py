"""`pgoutput-fast capture`, `mirror` and `demo` are the programs of these packages."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgoutput_fast.cli.main import main
from pgoutput_fast.demo import __main__ as demo

PROGRAMS = ("capture", "mirror", "demo")


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The programs set handlers of signals."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(each) for each in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_help_names_the_command(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([program, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: pgoutput-fast {program} ")
    assert f"Example:\n  pgoutput-fast {program} --" in shown


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["capture"], "these arguments are missing: --slot, --publication, --path"),
        (["mirror", "--slot", "s"], "these arguments are missing: --publication, --target"),
        (
            ["capture", "--nothing"],
            "unrecognized arguments: --nothing; pgoutput-fast capture --help explains it",
        ),
        (["mirror", "--threads", "x"], "argument --threads: invalid int value: 'x'"),
        (["demo", "--orders", "x"], "argument --orders: invalid int value: 'x'"),
        (["mirror", "--slot", "s", "-p", "p", "--target", "t"], "unrecognized arguments: -p"),
    ],
)
def test_wrong_usage(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
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
    monkeypatch.setattr(demo, "find_installations", list)
    assert main(["demo"]) == 1
    assert "pip install" in capsys.readouterr().out
