"""The commands of docs/command-line.md print what the page says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.csv
import pytest

from pgoutput_fast.cli.main import main
from support import pg
from support.capturing import drop_when_free
from support.code_blocks import blocks_of
from support.message_files import write_all, write_segments
from support.paths import DOCS

PAGE = (DOCS / "command-line.md").read_text()
# Those that need only a server. What others show is tested where they are.
COMMANDS = ("check", "slots", "snapshot", "capture", "mirror", "status", "tables", "query", "verify")
# Those that set handlers of signals, and logging.
PROGRAMS = ("capture", "mirror")
EXAMPLES = [
    (words, printed)
    for command, printed in re.findall(
        r"^```\n\$ pgoutput-fast (.*)\n((?:(?!```).*\n)*)```$", PAGE, re.MULTILINE
    )
    if (words := shlex.split(command))[0] in COMMANDS
]
SLOTS = ("to_cache", "to_lake", "to_mirror")


def comparable(text: str, database: str = "shop") -> str:
    """The text without positions, figures, and the widths of columns."""
    text = re.sub(rf"\b{database}\b", "shop", text)
    text = re.sub(r"\b[0-9A-F]+/[0-9A-F]+\b", "LSN", text)
    text = re.sub(r"\b[\d,.]+( (bytes?|[kMGT]B|M)\b|%)", "SIZE", text)
    text = re.sub(r"\b\d+\.\d\b", "SECONDS", text)
    text = re.sub(r'("bytes": |PostgreSQL )\d+', r"\1N", text)
    return re.sub(r" +", " ", text)


def test_the_page_has_an_example_of_each() -> None:
    assert {words[0] for words, _ in EXAMPLES} == set(COMMANDS)
    assert {" ".join(words[:2]) for words, _ in EXAMPLES if words[0] == "slots"} == {
        "slots ls",
        "slots create",
        "slots drop",
    }


@pytest.mark.slow
@pytest.mark.unsanitized
def test_the_commands_print_what_the_page_says(
    servers: pg.Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = max(servers, default=None)
    if newest is None:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[newest])
    source = os.pathsep.join(str(Path(each).absolute()) for each in sys.path if each)
    monkeypatch.setenv("PYTHONPATH", source)
    monkeypatch.setenv("PGOUTPUT_FAST_DSN", database.dsn)
    monkeypatch.chdir(tmp_path)
    try:
        database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, note text)",
            "CREATE TABLE customers (id int PRIMARY KEY)",
            "INSERT INTO orders SELECT id, 'an order' FROM generate_series(1, 1000) id",
            "INSERT INTO customers SELECT generate_series(1, 20)",
            "CREATE PUBLICATION shop FOR ALL TABLES",
        )
        for words, printed in EXAMPLES:
            shown = _in_a_process(words) if words[0] in PROGRAMS else _here(words, capsys)
            assert comparable(shown, database.name) == comparable(printed), words
    finally:
        for slot in SLOTS:
            drop_when_free(database.dsn, slot)
        database.drop()


def test_commands_that_need_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_all(tmp_path)["recvlogical"].rename("changes.bin")
    write_segments(tmp_path / "segments")
    found = [
        block.text
        for block in blocks_of(DOCS / "command-line.md")
        if block.heading in ("inspect and decode", "segments")
    ]
    assert len(found) == 2
    for line in "".join(found).splitlines():
        program, *words = shlex.split(line)
        assert program == "pgoutput-fast"
        assert _here(words, capsys)


def test_messages_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (made,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(made, "docs/command-line.md", "exec"), {})
    examples = re.findall(r"```sh\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == PAGE.count("```sh")
    for commands, expected in examples:
        for command in commands.splitlines():
            program, *arguments = shlex.split(command)
            assert program == "pgoutput-fast"
            main(arguments)
        assert capsys.readouterr().out == expected
    table = pyarrow.csv.read_csv(
        "tables/public.orders.csv", parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True)
    )
    assert table.column("note").to_pylist() == ["two\nlines", "paid"]


def _here(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    status = main(words)
    shown = capsys.readouterr()
    assert status == 0, shown.err
    return shown.out


def _in_a_process(words: list[str]) -> str:
    done = subprocess.run([sys.executable, "-m", "pgoutput_fast", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
