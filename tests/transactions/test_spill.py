"""What waits beyond the memory limit: files, how long they live, and what happens when they are not as they were."""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import resource
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast import Decoded, DecodeError, Decoder, Options, SpillError, StreamState, encode
from pgoutput_fast.encode import ColumnSpec, RelationSpec
from support.forms import and_slow

T = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23),))
STOP = encode.encode_stream_stop()


def options(directory: Path | None, **more: Any) -> Options:
    return Options(transactions="committed", memory_limit=1, spill_directory=directory, **more)


def block(*ks: int, xid: int = 9, first: bool = True) -> list[bytes]:
    body = [encode.encode_insert(16384, [str(k)], xid=xid) for k in ks]
    return [encode.encode_stream_start(xid, first), encode.encode_relation(T, xid=xid), *body, STOP]


def commit(xid: int = 9) -> list[bytes]:
    return [encode.encode_stream_commit(xid, 300, 308, 0)]


def abort(xid: int = 9) -> list[bytes]:
    return [encode.encode_stream_abort(xid, xid)]


def ids(*outs: Decoded) -> list[int]:
    return [k for out in outs for each in out.changes for k in each.batch.column("id").to_pylist()]


def files(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def waiting(directory: Path, *ks: int) -> Decoder:
    """A decoder that holds rows in files."""
    decoder = Decoder(options(directory))
    for at, k in enumerate(ks):
        assert decoder.decode(block(k, first=at == 0)).changes == []
    return decoder


def test_what_waits_goes_to_files_and_comes_back(tmp_path: Path) -> None:
    decoder = waiting(tmp_path, 1, 2)
    assert len(files(tmp_path)) == 2
    path = tmp_path / files(tmp_path)[0]
    with pa.OSFile(str(path)) as file:
        # Behind the Arrow file there is a mark of 22 bytes, and a token.
        assert pa.ipc.open_file(file, footer_offset=path.stat().st_size - 54).read_all().column(
            "seq"
        ).to_pylist() == [2]
    assert ids(decoder.decode(commit())) == [1, 2]
    assert files(tmp_path) == []


@pytest.mark.parametrize("alike", [True, False])
def test_payloads_that_repeat_themselves_are_compressed(tmp_path: Path, alike: bool) -> None:
    rng = random.Random(7)
    spec = RelationSpec(16385, "public", "u", (ColumnSpec("t", 25),))
    notes = [
        "x" * 500 if alike else "".join(rng.choices("0123456789abcdef" * 6 + "ghij", k=500))
        for _ in range(200)
    ]
    body = [encode.encode_insert(16385, [note], xid=9) for note in notes]
    decoder = Decoder(options(tmp_path))
    decoder.decode([encode.encode_stream_start(9, True), encode.encode_relation(spec, xid=9), *body, STOP])
    (path,) = tmp_path.iterdir()
    assert (path.stat().st_size < 200 * 250) == alike
    out = decoder.decode(commit())
    assert out.table("public.u").column("t").to_pylist() == notes


def test_below_the_limit_there_are_no_files(tmp_path: Path) -> None:
    directory = tmp_path / "made when it is needed"
    decoder = Decoder(Options(transactions="committed", spill_directory=directory))
    decoder.decode(block(1))
    assert not directory.exists()
    decoder = waiting(directory, 1)
    assert len(files(directory)) == 1


def test_a_directory_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    decoder = waiting(Path("here"), 1, 2)
    monkeypatch.chdir("/")
    assert files(tmp_path / "here")
    assert ids(decoder.decode(commit())) == [1, 2]
    assert files(tmp_path / "here") == []


def test_the_largest_transactions_go_first(tmp_path: Path) -> None:
    decoder = Decoder(Options(transactions="committed", memory_limit=20_000, spill_directory=tmp_path))
    decoder.decode([*block(1, xid=10), *block(*range(400)), *block(2, xid=11)])
    assert len(files(tmp_path)) == 1
    reorder_buffer = decoder.state.reorder_buffer
    assert reorder_buffer is not None
    assert 0 < reorder_buffer.memory <= 10_000
    del reorder_buffer
    decoder.decode(abort())
    assert files(tmp_path) == []
    assert ids(decoder.decode([*commit(10), *commit(11)])) == [1, 2]


@pytest.mark.parametrize("end", [commit(), abort(), block(5), block(5, xid=9)])
def test_files_go_with_their_transaction(tmp_path: Path, end: list[bytes]) -> None:
    decoder = waiting(tmp_path, 1, 2)
    before = files(tmp_path)
    decoder.decode(end)
    assert not set(before) & set(files(tmp_path))


def test_files_of_a_void_transaction_go(tmp_path: Path) -> None:
    decoder = waiting(tmp_path, 1)
    decoder.start_session()
    before = files(tmp_path)
    plain = [encode.encode_begin(100, 0, 7), encode.encode_commit(100, 108, 0)]
    decoder.decode(plain)
    assert (len(before), files(tmp_path)) == (1, [])


def test_files_go_with_the_decoder(tmp_path: Path) -> None:
    with waiting(tmp_path, 1, 2) as decoder:
        assert len(files(tmp_path)) == 2
    assert files(tmp_path) == []
    with pytest.raises(ValueError, match="closed"):
        decoder.decode([])
    with pytest.raises(ValueError, match="closed"):
        decoder.start_session()
    with pytest.raises(ValueError, match="closed"):
        next(decoder.stream([[]]))
    with pytest.raises(ValueError, match="closed"):
        _ = decoder.state
    decoder.close()
    decoder = waiting(tmp_path, 1)
    assert len(files(tmp_path)) == 1
    del decoder
    gc.collect()
    assert files(tmp_path) == []


def test_a_temporary_directory_is_private_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    decoder = Decoder(options(None))
    assert files(tmp_path) == [], "only when it is needed"
    decoder.decode(block(1))
    (directory,) = tmp_path.iterdir()
    assert directory.stat().st_mode & 0o077 == 0
    assert len(files(directory)) == 1
    text = decoder.state.to_json()
    decoder.close()
    assert files(tmp_path) == []
    again = Decoder(options(None), StreamState.from_json(text))
    assert ids(again.decode(commit())) == [1], "a state has it all, where the files do not stay"
    assert files(tmp_path) == []


def test_a_state_outlives_the_decoder_and_its_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Decoder(options(None)) as decoder:
        decoder.decode(block(1))
        state = decoder.state
    assert state.spill_files == []
    again = Decoder(options(None), state)
    assert StreamState.from_json(state.to_json()) == state == again.state
    del state, decoder
    assert ids(again.decode(commit())) == [1]
    again.close()
    gc.collect()
    assert files(tmp_path) == []


# --- states that name files -----------------------------------------------------------------------------------


def test_a_saved_state_finds_its_files_again(tmp_path: Path) -> None:
    decoder = waiting(tmp_path, 1, 2)
    state = decoder.state
    saved = [state.to_json(), pickle.dumps(state)]
    assert state.spill_files == files(tmp_path)
    assert all(len(each) < 5000 for each in saved)
    decoder.close()
    del decoder, state
    gc.collect()
    assert len(files(tmp_path)) == 2, "a saved state names them"
    for again in (StreamState.from_json(saved[0]), pickle.loads(saved[1])):
        decoder = Decoder(options(tmp_path), again)
        assert decoder.state == again
        assert ids(decoder.decode([*block(3, first=False), *commit()])) == [1, 2, 3]
        assert len(files(tmp_path)) == 2, "it may have to be resumed once more"


def test_a_file_that_cannot_be_written_is_named_and_removed(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    decoder = Decoder(options(tmp_path))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            decoder.decode(block(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (note,) = caught.value.__notes__
    assert f"spill file {tmp_path}/pgoutput-fast-" in note
    assert "cannot be written; nothing of it is left" in note
    assert files(tmp_path) == []
    # The call had no effect, so it can be made again.
    assert ids(decoder.decode(block(1)), decoder.decode(commit())) == [1]


def test_files_stay_until_a_later_state_was_saved_and_used(tmp_path: Path) -> None:
    decoder = waiting(tmp_path, 1)
    first = decoder.state.to_json()
    decoder.decode(commit())
    assert len(files(tmp_path)) == 1
    decoder.decode([])
    assert len(files(tmp_path)) == 1, "no later state was saved"
    assert decoder.state.spill_files == []
    decoder.decode([])
    assert len(files(tmp_path)) == 1, "this one was only looked at"
    decoder.state.to_json()
    assert len(files(tmp_path)) == 1, "perhaps it never reached a disk"
    decoder.decode([])
    assert files(tmp_path) == []
    with pytest.raises(SpillError, match="is missing") as caught:
        Decoder(options(tmp_path), StreamState.from_json(first))
    assert caught.value.txn == 0
    assert pickle.loads(pickle.dumps(caught.value)).path == caught.value.path


def test_a_resumed_decoder_ends_what_its_state_names(tmp_path: Path) -> None:
    text = waiting(tmp_path, 1).state.to_json()
    decoder = Decoder(options(tmp_path), StreamState.from_json(text))
    assert ids(decoder.decode(commit())) == [1]
    decoder.state.to_json()
    decoder.decode([])
    assert files(tmp_path) == []


def test_close_can_discard_what_states_name(tmp_path: Path) -> None:
    decoder = waiting(tmp_path, 1)
    text = decoder.state.to_json()
    decoder.close()
    assert len(files(tmp_path)) == 1
    Decoder(options(tmp_path), StreamState.from_json(text)).close(discard=True)
    assert files(tmp_path) == []


def test_a_state_in_memory_keeps_its_files(tmp_path: Path) -> None:
    with waiting(tmp_path, 1) as decoder:
        state = decoder.state
    assert len(files(tmp_path)) == 1
    again = Decoder(options(tmp_path), state)
    del state
    assert ids(again.decode(commit())) == [1]
    assert files(tmp_path) == []


def test_a_state_carries_little_where_there_is_a_directory(tmp_path: Path) -> None:
    decoder = Decoder(Options(transactions="committed", spill_directory=tmp_path))
    decoder.decode(block(*range(20_000)))
    assert files(tmp_path) == []
    text = decoder.state.to_json()
    assert len(files(tmp_path)) == 1
    assert len(text) < 5000
    again = Decoder(options(tmp_path), StreamState.from_json(text))
    assert ids(again.decode(commit())) == list(range(20_000)) == ids(decoder.decode(commit()))


def test_a_state_that_names_files_wants_their_directory(tmp_path: Path) -> None:
    state = StreamState.from_json(waiting(tmp_path, 1).state.to_json())
    with pytest.raises(ValueError, match="spill_directory"):
        Decoder(options(None), state)
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in state.spill_files:
        (tmp_path / name).rename(moved / name)
    assert ids(Decoder(options(moved), state).decode(commit())) == [1]


def test_a_state_names_no_file_elsewhere(tmp_path: Path) -> None:
    text = waiting(tmp_path, 1).state.to_json().replace('"pgoutput-fast-', '"../pgoutput-fast-')
    with pytest.raises(ValueError, match="somebody edited the state"):
        Decoder(options(tmp_path), StreamState.from_json(text))


def test_a_state_of_an_earlier_version_says_what_to_do(tmp_path: Path) -> None:
    document = json.loads(waiting(tmp_path, 1).state.to_json())
    del document["held"]["waiting"][0]["files"][0]["token"]
    with pytest.raises(ValueError, match=r"earlier version .* Continue with that version"):
        StreamState.from_json(json.dumps(document))


def name_another(text: str, **values: object) -> str:
    """A state that says something else of its first spill file."""
    document = json.loads(text)
    document["held"]["waiting"][0]["files"][0].update(values)
    return json.dumps(document)


@pytest.mark.parametrize(
    "what", and_slow(["named alike", "a link", "another's"], ["a file", "a hard link to it", "a pipe"])
)
def test_an_edited_state_removes_nothing(tmp_path: Path, what: str) -> None:
    """It names a file that is none of its own, and knows the size of it."""
    decoder = waiting(tmp_path, 1)
    text = decoder.state.to_json()
    decoder.close()
    name = {"a file": "orders.parquet", "a hard link to it": "orders.parquet"}.get(
        what, "pgoutput-fast-00112233445566ff-7.arrow"
    )
    victim, content = tmp_path / name, b"what somebody needs"
    (tmp_path / "elsewhere").write_bytes(content)
    if what == "a link":
        victim.symlink_to(tmp_path / "elsewhere")
    elif what == "a hard link to it":
        # Of a real spill file, under a name that is none.
        os.link(tmp_path / StreamState.from_json(text).spill_files[0], victim)
    elif what == "a pipe":
        os.mkfifo(victim)
    elif what == "another's":
        other = waiting(tmp_path, 2)
        (path,) = {*tmp_path.glob("*.arrow")} - {tmp_path / StreamState.from_json(text).spill_files[0]}
        name, victim = path.name, path
    else:
        victim.write_bytes(content)
    before = {path: os.lstat(path) for path in tmp_path.iterdir()}
    edited = name_another(
        text, name=name, size=victim.stat().st_size, **({"checksum": 7} if what == "a pipe" else {})
    )
    with pytest.raises(ValueError, match=r"somebody edited the state|somebody replaced the file"):
        Decoder(options(tmp_path), StreamState.from_json(edited)).close(discard=True)
    gc.collect()
    after = {path: os.lstat(path) for path in tmp_path.iterdir()}
    assert {path: status.st_ino for path, status in after.items()} == {
        path: status.st_ino for path, status in before.items()
    }
    assert ids(Decoder(options(tmp_path), StreamState.from_json(text)).decode(commit())) == [1]
    if what == "another's":
        assert ids(other.decode(commit())) == [2]


def test_a_state_names_a_file_once(tmp_path: Path) -> None:
    decoder = waiting(tmp_path, 1)
    document = json.loads(decoder.state.to_json())
    files_of = document["held"]["waiting"][0]["files"]
    files_of.append(files_of[0])
    with pytest.raises(ValueError, match="names a spill file twice"):
        StreamState.from_json(json.dumps(document))


def test_a_file_that_got_the_name_stays(tmp_path: Path) -> None:
    decoder = waiting(tmp_path, 1)
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"another's")
    decoder.close(discard=True)
    assert path.read_bytes() == b"another's"


def test_only_the_owner_reads_them(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        decoder = waiting(tmp_path / "of" / "them", 1)
        (path,) = (tmp_path / "of" / "them").iterdir()
        modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent, path.parent.parent)]
        assert modes == [0o600, 0o700, 0o777]
        assert ids(decoder.decode(commit())) == [1]
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "change", [('"rows": 1', '"rows": "1"'), ('"from_batch": 0', '"from_batch": 1'), ('"size"', '"sise"')]
)
def test_a_state_that_was_written_over_is_refused(tmp_path: Path, change: tuple[str, str]) -> None:
    text = waiting(tmp_path, 1).state.to_json()
    assert change[0] in text
    with pytest.raises(ValueError, match="not a stream state"):
        StreamState.from_json(text.replace(*change))


# --- files that are not as they were ----------------------------------------------------------------------------


def spoil(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[:-9])
    elif how == "changed":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize("how", ["missing", "cut", "changed", "directory"])
def test_a_spoilt_file_is_an_error_that_says_what_to_do(tmp_path: Path, how: str) -> None:
    decoder = waiting(tmp_path, 1, 2)
    text = decoder.state.to_json()
    path = tmp_path / files(tmp_path)[1]
    good = path.read_bytes()
    spoil(path, how)
    before = decoder.state
    for _ in range(2):
        with pytest.raises(SpillError, match=r"is missing|is damaged|cannot be read") as caught:
            decoder.decode([*block(7, xid=20), *commit()])
        assert caught.value.path == str(path)
        assert "state that was saved before message 0" in str(caught.value)
        assert decoder.state == before
    with pytest.raises(ValueError if how == "directory" else SpillError):
        Decoder(options(tmp_path), StreamState.from_json(text)).decode(commit())
    if path.is_dir():
        path.rmdir()
    path.write_bytes(good)
    assert ids(decoder.decode(commit())) == [1, 2], "the file was put back"


def test_another_transactions_file_is_not_taken_for_it(tmp_path: Path) -> None:
    decoder = Decoder(options(tmp_path))
    decoder.decode(block(1))
    decoder.decode(block(2, xid=10))
    first, second = (tmp_path / name for name in files(tmp_path))
    first.write_bytes(second.read_bytes())
    with pytest.raises(SpillError):
        decoder.decode(commit())


# --- calls that fail, decoders that meet ------------------------------------------------------------------------


def test_a_failed_call_leaves_files_as_they_were(tmp_path: Path) -> None:
    decoder = waiting(tmp_path, 1)
    before, names = decoder.state, files(tmp_path)
    bad = encode.encode_insert(16384, ["x"], xid=9)
    for payloads in (
        [*block(2, first=False), b"?"],
        [*block(2, first=False), *commit(), b"?"],
        [*abort(), b"?"],
        [*block(2, first=False)[:-1], bad, STOP, *commit()],
    ):
        with pytest.raises(DecodeError):
            decoder.decode(payloads)
        gc.collect()
        assert files(tmp_path) == names
        assert decoder.state == before
    assert ids(decoder.decode(commit())) == [1]


def test_where_there_is_no_room_the_call_is_taken_back(tmp_path: Path) -> None:
    decoder = waiting(tmp_path, 1)
    before = decoder.state
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):  # as root: a directory that is none
        tmp_path.chmod(0o700)
        moved = tmp_path.with_name("moved")
        tmp_path.rename(moved)
        tmp_path.write_text("")
        with pytest.raises(OSError, match=r"xists|directory"):
            decoder.decode(block(2, first=False))
        tmp_path.unlink()
        moved.rename(tmp_path)
    else:
        with pytest.raises(OSError, match="ermission"):
            decoder.decode(block(2, first=False))
        tmp_path.chmod(0o700)
    assert decoder.state == before
    assert ids(decoder.decode([*block(2, first=False), *commit()])) == [1, 2]


def test_decoders_share_a_directory(tmp_path: Path) -> None:
    decoders = [waiting(tmp_path, k, 10 + k) for k in range(3)]
    (tmp_path / "pgoutput-fast-0000000000000000-0.arrow").write_bytes(b"left by a crash")
    assert len(files(tmp_path)) == 7
    decoders[1].close()
    assert [ids(decoders[k].decode(commit())) for k in (2, 0)] == [[2, 12], [0, 10]]
    assert len(files(tmp_path)) == 1, "what no state names is not touched"


def test_a_fork_leaves_its_parents_files_alone(tmp_path: Path) -> None:
    decoder = waiting(tmp_path, 1)
    child = os.fork()
    if child == 0:
        decoder.close()
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert ids(decoder.decode(commit())) == [1]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "64MB", None])
def test_memory_limit_is_a_number_of_bytes(wrong: Any) -> None:
    with pytest.raises(ValueError, match="memory_limit"):
        Options(memory_limit=wrong)


@pytest.mark.parametrize("wrong", ["", b"x", 7])
def test_spill_directory_is_a_path(wrong: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Options(spill_directory=wrong)


def test_options_with_a_directory_pickle(tmp_path: Path) -> None:
    given = options(tmp_path)
    assert given.spill_directory == str(tmp_path)
    assert pickle.loads(pickle.dumps(given)) == given
