"""Files that appear once, and stay: races for a name, directories, fsyncs that fail."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgoutput_fast.capture.retention import Consumers
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.storage.stores import open_store

ROUNDS = 200

# Two of these write files of the same names, each as soon as the other one is ready for it.
RACER = """
import os, sys
from pgoutput_fast.storage.stores import open_store

mine, directory, rounds, links = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
if links == "without links":
    def none(*_):
        raise OSError(1, "Operation not permitted")  # what exFAT says
    os.link = none
store = open_store(directory)
won = 0
for k in range(rounds):
    try:
        with store.write(f"{k}") as file:
            file.write(mine.encode() * 100)
            print("ready", flush=True)
            sys.stdin.readline()
        won += 1
        print("won", flush=True)
    except FileExistsError:
        print("lost", flush=True)
"""


@pytest.mark.parametrize("links", ["with links", "without links"])
@pytest.mark.unsanitized
def test_of_two_writers_of_a_name_one_wins(tmp_path: Path, links: str) -> None:
    command = [sys.executable, "-c", RACER]
    racers = [
        subprocess.Popen(
            [*command, mine, str(tmp_path), str(ROUNDS), links],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )
        for mine in "ab"
    ]  # fmt: skip

    def hear(racer: subprocess.Popen[str]) -> str:
        assert racer.stdout is not None
        return racer.stdout.readline().strip()

    try:
        for k in range(ROUNDS):
            assert [hear(racer) for racer in racers] == ["ready", "ready"]
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write("go\n")
                racer.stdin.flush()
            said = [hear(racer) for racer in racers]
            assert sorted(said) == ["lost", "won"], f"round {k}"
            assert (tmp_path / f"{k}").read_text() == "ab"[said.index("won")] * 100
        assert sorted(os.listdir(tmp_path), key=int) == [f"{k}" for k in range(ROUNDS)], "nothing is left"
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def test_a_link_whose_answer_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS does it, does not hear that it is done, does it again, and says that the name is taken: by the file itself."""
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    with open_store(tmp_path).write("x") as file:
        file.write(b"1")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x": b"1"}


def test_names_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        store = open_store(tmp_path / "a")
        with store.write("b/c") as file:
            file.write(b"1")
        store.put("b/d", b"1")
        modes = [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("a", "a/b", "a/b/c", "a/b/d")]
        assert modes == ["0o750", "0o750", "0o640", "0o640"]
    finally:
        os.umask(before)


def test_less_than_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        store = open_store(tmp_path / "a")
        store.limit(0o646)
        store.put("b/d", b"1")
        modes = [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("a", "a/b", "a/b/d")]
        assert modes == ["0o755", "0o755", "0o644"]
    finally:
        os.umask(before)
    for wrong in (640, 0o440, 0o755, 0o1644, -1, True, "640"):
        with pytest.raises(ValueError, match="such as 0o640"):
            store.limit(wrong)  # type: ignore[arg-type]


# --- what a crash of the machine would leave ---------------------------------------------------------------------


class Disk:
    """What of a tree is on the disk: the entries that a directory had when an fsync of it succeeded."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, int], set[tuple[str, int]]] = {}
        self.calls = 0
        self.fail_at: int | None = None
        self._fsync = os.fsync

    def fsync(self, descriptor: int) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._fsync(descriptor)
        status = os.fstat(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            self.entries[status.st_dev, status.st_ino] = self.list(Path(path))

    @staticmethod
    def list(directory: Path) -> set[tuple[str, int]]:
        with os.scandir(directory) as found:
            return {(each.name, each.inode()) for each in found if not each.name.startswith(".")}

    def lost(self, directory: Path) -> list[str]:
        """What a crash would take, of a directory and what is in it."""
        status = directory.stat()
        safe = self.entries.get((status.st_dev, status.st_ino), set())
        gone = [str(directory / name) for name, _ in self.list(directory) - safe]
        for each in directory.iterdir():
            gone += self.lost(each) if each.is_dir() else []
        return gone


@contextmanager
def on_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk.fsync)
        yield disk


def test_parents_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_disk(monkeypatch) as disk:
        store = open_store(tmp_path / "lake" / "of" / "ours")
        store.make()
        store.put("tables/public.orders/7/1.parquet", b"1")
        assert disk.lost(tmp_path) == []
        # Somebody else made a directory, and was killed before he had its parent fsynced.
        (tmp_path / "another" / "one").mkdir(parents=True)
        open_store(tmp_path / "another" / "one").make()
        (tmp_path / "another" / "one" / "tables").mkdir()
        open_store(tmp_path / "another" / "one").put("tables/1", b"1")
        assert disk.lost(tmp_path) == []


def test_directories_of_others_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as lost+found, where a volume is mounted; for root all can be opened, so opening fails here."""
    (tmp_path / "lost+found").mkdir(mode=0)
    really = os.open

    def refused(path: str | os.PathLike[str], *arguments: int, **more: int) -> int:
        if os.fspath(path) == str(tmp_path / "lost+found"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return really(path, *arguments, **more)

    monkeypatch.setattr(os, "open", refused)
    with SegmentDirectory(tmp_path).owned():
        pass


def test_what_a_failed_fsync_left_is_made_sure_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever fsync fails: who begins next has all on the disk that it goes on from."""

    def run(root: Path) -> None:
        target = SegmentDirectory(root / "deep" / "lake")
        with target.owned():
            store = open_store(root / "deep" / "lake")
            if (confirmed := target.confirmed.lsn) is not None:
                trusted.append(confirmed)
            target.confirmed.save(7, now=True)
            if consumed := Consumers(root / "deep" / "lake").positions():
                trusted.append(consumed["lake"])
            else:
                store.put("tables/public.t/7/1.parquet", b"1")
                Consumers(root / "deep" / "lake").set("lake", 9)
            assert target.newest() is None

    trusted: list[int] = []
    with on_disk(monkeypatch) as disk:
        run(tmp_path / "0")
        calls = disk.calls
    assert calls > 10
    assert trusted == []
    for k in range(1, calls + 1):
        root = tmp_path / str(k)
        root.mkdir()
        with on_disk(monkeypatch) as disk:
            disk.fail_at = k
            with pytest.raises(OSError, match="Input/output"):
                run(root)
            run(root)
            assert disk.lost(root) == [], f"after fsync {k} failed"
    assert set(trusted) == {7, 9}, "entries that were there though their fsync failed were met"
