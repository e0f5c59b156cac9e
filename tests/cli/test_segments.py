"""`pgoutput-fast segments` lists, shows, verifies and joins segments."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import pgoutput_fast as pgo
from pgoutput_fast.cli.main import main
from pgoutput_fast.encode import encode_insert
from pgoutput_fast.segments import Source, list_segments, write_segment
from support.message_files import stream, write_segments

Shown = pytest.CaptureFixture[str]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_segments(tmp_path / "segments")


def said(arguments: list[str], capsys: Shown, status: int) -> list[str]:
    assert main(["segments", *arguments]) == status
    shown = capsys.readouterr()
    return (shown.out + shown.err).splitlines()


def test_ls(directory: Path, capsys: Shown) -> None:
    head, *found = said(["ls", str(directory)], capsys, 0)
    assert head.split("  ")[0] == "name"
    assert [line.split()[0] for line in found] == sorted(each.name for each in directory.iterdir())
    objects = [json.loads(line) for line in said(["ls", str(directory), "--json"], capsys, 0)]
    assert [each["messages"] for each in objects] == [6, 4, 4, 5]
    assert (objects[1]["start_lsn"], objects[1]["end_lsn"]) == ("0/64", "0/D0")
    assert objects[0]["bytes"] == min(directory.iterdir()).stat().st_size


def test_cat(directory: Path, capsys: Shown) -> None:
    found = said(["cat", str(directory), "--table", "public.orders", "--kind", "insert", "--json"], capsys, 0)
    assert [json.loads(line)["new"]["id"] for line in found] == ["0", "1", "2", "3"]


def test_a_gap_is_said(directory: Path, capsys: Shown) -> None:
    sorted(directory.iterdir())[1].unlink()
    assert main(["segments", "cat", str(directory), "--kind", "begin"]) == 0
    assert capsys.readouterr().err == "pgoutput-fast: messages 6 to 9 are missing\n"


def test_verify(directory: Path, capsys: Shown) -> None:
    assert said(["verify", str(directory)], capsys, 0) == ["4 segments, 20 rows: all in order"]
    assert said(["verify", f"file://{directory}"], capsys, 0) == ["4 segments, 20 rows: all in order"]


def test_verify_finds_what_is_wrong(directory: Path, tmp_path: Path, capsys: Shown) -> None:
    first, second, third, last = sorted(directory.iterdir())
    second.unlink()
    first.write_bytes(first.read_bytes()[:-50])
    data = bytearray(last.read_bytes())
    data[300:360] = bytes(each ^ 0xFF for each in data[300:360])
    last.write_bytes(bytes(data))
    (directory / "notes.parquet").write_bytes(b"no segment")
    found = said(["verify", str(directory)], capsys, 1)
    assert any(line.startswith(f"{first.name}: ") and "damaged" in line for line in found)
    assert f"{third.name}: messages 6 to 9 are missing before it" in found
    assert any(line.startswith(f"{last.name}: ") for line in found)
    assert any(line.startswith("notes.parquet: ") for line in found)
    assert found[-1] == "4 segments, 4 rows: 4 wrong"
    third.rename(third.with_name(f"{11:020}-{14:020}.parquet"))
    assert any(
        "its footer has messages 10 to 13" in line for line in said(["verify", str(directory)], capsys, 1)
    )


def test_verify_decodes_each_message(tmp_path: Path, capsys: Shown) -> None:
    wal = stream()
    wal[2] = encode_insert(16401, ["no number", "a"])
    tagged, state = pgo.tag(wal)
    write_segment(tmp_path, tagged, state, source=Source("1", "shop", "slot"))
    problem, _ = said(["verify", str(tmp_path)], capsys, 1)
    assert "message 2 cannot be decoded" in problem
    assert "no number" not in problem


def test_verify_finds_another_capture(directory: Path, tmp_path: Path, capsys: Shown) -> None:
    tagged, state = pgo.tag(stream(), list_segments(directory)[-1].state)
    other = tmp_path / "other"
    other.mkdir()
    write_segment(other, tagged, state, source=Source("other", "shop", "slot"))
    for each in other.iterdir():
        shutil.copy(each, directory)
    found = said(["verify", str(directory)], capsys, 1)
    assert any("segments of one source only" in line for line in found)


def test_compact(directory: Path, capsys: Shown) -> None:
    found = said(["compact", str(directory), "--keep", "1", "--grace", "0"], capsys, 0)
    assert found[0] == "4 segments became 2: joined 3, with 14 rows"
    assert [(each.first_seq, each.last_seq) for each in list_segments(directory)] == [(0, 13), (14, 18)]
    assert said(["verify", str(directory)], capsys, 0) == ["2 segments, 20 rows: all in order"]
    done = json.loads(said(["compact", str(directory), "--json"], capsys, 0)[0])
    assert done["joined"] == 0


@pytest.mark.parametrize("command", ["ls", "cat", "verify", "compact"])
def test_what_has_no_segments(command: str, tmp_path: Path, capsys: Shown) -> None:
    for place, what in ((tmp_path, "has no segments"), (tmp_path / "nowhere", "no")):
        (line,) = said([command, str(place)], capsys, 1)
        assert line.startswith("pgoutput-fast: ")
        assert what in line
    assert main(["segments", command, str(tmp_path), "--keep", "0"]) == 2
    capsys.readouterr()
    (line,) = said([command], capsys, 2)
    assert (
        line
        == f"pgoutput-fast: this argument is missing: {'DIRECTORY' if command == 'compact' else 'SEGMENTS'}"
    )


def test_compact_is_for_directories(directory: Path, capsys: Shown) -> None:
    one = min(directory.iterdir())
    (line,) = said(["compact", str(one)], capsys, 2)
    assert line == f"pgoutput-fast: compact joins the segments of a directory, and {one} is a file"
    assert main(["segments", "compact", "--help"]) == 0
    assert "one segment" not in capsys.readouterr().out


def test_verify_says_that_a_file_is_something_else(tmp_path: Path, capsys: Shown) -> None:
    (tmp_path / "text.txt").write_text("one\ntwo\n")
    found = said(["verify", str(tmp_path / "text.txt")], capsys, 1)
    assert found[0] == "text.txt: it is not a Parquet file, so it is not a segment"
