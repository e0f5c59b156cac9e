"""Every command ends with a status and at most one line; what it writes suits a terminal, a pipe and a program."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from pgoutput_fast import __version__
from pgoutput_fast.cli.app import app
from pgoutput_fast.cli.main import main
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from support.forms import and_slow
from support.paths import DOCS

pytestmark = pytest.mark.unsanitized

COMMAND = [sys.executable, "-m", "pgoutput_fast"]


def names() -> list[list[str]]:
    """The words of every command."""
    found = []
    for name, each in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        below = getattr(each, "commands", None)
        found += [[name]] if below is None else [[name, inner] for inner in below]
    return found


@pytest.mark.parametrize("words", names(), ids=" ".join)
def test_every_command_has_an_example_and_is_in_the_page(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    called = f"pgoutput-fast {' '.join(words)}"
    # The examples are the end, each on a line of its own: they can be copied.
    assert re.search(rf"Examples?:\n( +{called}( .*)?\n)+\n*\Z", shown), shown
    page = (DOCS / "command-line.md").read_text()
    assert re.search(rf"^(\$|   ) {called}( |$)", page, re.MULTILINE)
    assert f"`{' '.join(words)}`" in page


def test_a_short_option_means_the_same_everywhere() -> None:
    meanings: dict[str, set[str]] = {}
    for words in names():
        command: Any = typer.main.get_command(app)
        for word in words:
            command = command.commands[word]
        for parameter in command.params:
            for short in parameter.opts:
                if len(short) == 2:
                    meanings.setdefault(short, set()).add(max(parameter.opts, key=len))
    assert meanings["-t"] == {"--table"}
    assert {short: found for short, found in meanings.items() if len(found) > 1} == {}


@pytest.mark.parametrize("given", [[], ["--help"]])
def test_the_help_names_all_commands(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given) == 0
    shown = capsys.readouterr().out
    assert [name for name, *_ in names() if not re.search(rf"^  {name} +[A-Z]", shown, re.MULTILINE)] == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pgoutput-fast {__version__}\n"


def test_an_unknown_command_has_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshto"]) == 2
    said = capsys.readouterr().err
    assert "Did you mean 'snapshot'?" in said
    assert said.count("\n") == 1


def test_debug_shows_the_trace_without_a_password(capsys: pytest.CaptureFixture[str]) -> None:
    # The error names the host, as the password could be in another error.
    dsn = "host=/nowhere/topsecret password=topsecret"
    assert main(["slots", "ls", "--debug", "--dsn", dsn]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert "OperationalError" in said
    assert said.count("/nowhere/***/") == 2
    assert "topsecret" not in said


@pytest.mark.unsanitized
def test_a_pipe_that_nobody_reads_is_no_error() -> None:
    for words in (["bench", "--messages", "1000"], ["bench", "--messages", "1000", "--json"]):
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run([*COMMAND, *words], stdout=writing, stderr=subprocess.PIPE, text=True)
        os.close(writing)
        assert (done.returncode, done.stderr) == (0, ""), words


@pytest.mark.parametrize(
    ("closed", "words", "status", "said"),
    and_slow(
        [(">&- <&-", ["inspect"], 1, "standard input is empty")],
        [("<&-", ["inspect"], 1, "standard input is empty"), ("2>&-", ["inspect", "--nonsense"], 2, "")],
    ),
)
def test_closed_streams_are_empty_ones(closed: str, words: list[str], status: int, said: str) -> None:
    """A service may begin without them."""
    call = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (call.returncode, call.stdout) == (status, "")
    assert said in call.stderr
    assert call.stderr.count("\n") == bool(said)


def test_what_the_output_cannot_show_is_escaped(tmp_path: Path) -> None:
    orders = RelationSpec(16401, "public", "zam\u00f3wienia", (ColumnSpec("id", 23, key=True),))
    writer = Writer(1)
    messages = (
        writer.begin(7, 100, 0) + writer.change(orders, "insert", new=["1"]) + writer.commit(100, 108, 0)
    )
    file = tmp_path / "changes.hex"
    file.write_text("\n".join(each.hex() for each in messages))
    for encoding, name in (("ascii", b'"zam\\xf3wienia"'), ("utf-8", '"zam\u00f3wienia"'.encode())):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run([*COMMAND, "inspect", str(file)], env=environment, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        assert name in done.stdout


def _on_a_terminal(words: list[str], **environment: str) -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "80", "TERM": "xterm", **environment},
    ):
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # how Linux tells the end of a terminal
                break
            if not part:
                break
            shown += part
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.slow
@pytest.mark.unsanitized
def test_colours_are_for_terminals_that_want_them() -> None:
    words = ["bench", "--messages", "1000"]
    shown = _on_a_terminal(words)
    assert "\x1b[1m" in shown
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = _on_a_terminal(words, **environment)
        assert not re.search(r"\x1b\[[0-9;]*3[0-9]", plain)
        assert max(map(len, re.sub(r"\x1b\[[0-9;]*m", "", plain).splitlines())) <= 80


@pytest.mark.unsanitized
def test_lines_break_between_words_on_a_terminal() -> None:
    said = _on_a_terminal(["slots", "ls", "--dsn", "host=127.0.0.1 port=1"])
    lines = said.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80
    assert "accepting TCP/IP connections?" in " ".join(lines)


@pytest.mark.unsanitized
def test_completion_knows_the_commands() -> None:
    environment = {
        **os.environ,
        "_PGOUTPUT_FAST_COMPLETE": "complete_bash",
        "COMP_WORDS": "pgoutput-fast slots ",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["ls", "create", "alter", "drop"]


HEAVY = {"psycopg2", "pyspark", "pandas", "deltalake", "duckdb"}
HELP = f"""
import sys
from pgoutput_fast.cli.main import main

main(["--help"])
print("loaded:", sorted({HEAVY!r} & set(sys.modules)))
"""


@pytest.mark.unsanitized
def test_the_help_loads_nothing_heavy(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"
