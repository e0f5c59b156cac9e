"""Recognises the kind of an input from its content."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from pgoutput_fast.base.arguments import UsageError
from pgoutput_fast.base.private_directory import PrivateDirectory
from pgoutput_fast.cli.payloads import (
    ArrowFile,
    HexText,
    InputError,
    Payloads,
    RawFile,
    Recvlogical,
    hex_of_line,
)
from pgoutput_fast.cli.terminating import terminating
from pgoutput_fast.messages.ends import CutOffError, end_of_message
from pgoutput_fast.messages.fields import FIELDS, DamagedMessageError
from pgoutput_fast.storage.paths import is_uri, redacted_uri

__all__ = ["Input", "InputKind", "Segments", "opened"]

_HEAD_BYTES = 1 << 16
_ARROW_STREAM = b"\xff\xff\xff\xff"
_HEX = re.compile(r"\\x[0-9A-Fa-f]{2}")
_ONLY_HEX = re.compile(r"(?:\\x|0x)?[0-9A-Fa-f\s]+")
_OTHERS = {
    b"BEGIN": "text, as the plugin test_decoding writes it",
    b"table ": "text, as the plugin test_decoding writes it",
    b"{": "JSON",
    b"\x1f\x8b": "compressed by gzip: decompress it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: decompress it first",
}


class InputKind(StrEnum):
    """The kinds of inputs."""

    HEX = "hex"
    RAW = "raw"
    RECVLOGICAL = "recvlogical"
    PARQUET = "parquet"
    ARROW = "arrow"
    SEGMENTS = "segments"


@dataclass(frozen=True)
class Segments:
    """A segment, or a directory of segments, local or in a store."""

    path: str

    @property
    def name(self) -> str:
        """Its name in error texts."""
        return redacted_uri(self.path)


Input = Payloads | Segments


@contextmanager
def opened(given: Sequence[str], kind: InputKind | None, *, follow: bool = False) -> Iterator[list[Input]]:
    """Opens the inputs named by the arguments of a command; by default, standard input.

    Args:
        given: files, directories, URIs of segments, hex digits, or `-`.
        kind: their kind; None to recognise it.
        follow: whether a directory may get its first segment later.

    Raises:
        InputError: for something that is not an input.
        UsageError: if nothing is given, and standard input is a terminal.
    """
    # SIGTERM then removes a copy of the standard input, too.
    with terminating(), PrivateDirectory() as directory:
        if not given and sys.stdin.isatty():
            raise UsageError(
                "name an input: a file, a directory of segments, hex digits, or a slot with --slot and --publication"
            )
        digits = [each for each in given if _is_hex(each, kind)]
        if digits and len(digits) == len(given):
            yield [HexText(_messages(given), "the argument")]
            return
        yield [_input(each, kind, directory, follow=follow) for each in given or ["-"]]


def _is_hex(text: str, kind: InputKind | None) -> bool:
    if os.path.exists(text) or text == "-" or kind not in (None, InputKind.HEX):
        return False
    return kind == InputKind.HEX or _ONLY_HEX.fullmatch(text) is not None


def _messages(given: Sequence[str]) -> list[str]:
    """The lines of arguments in hex digits."""
    lines = [line for each in given for line in each.splitlines() if line.strip()]
    for each in lines:
        if hex_of_line(each) is None:
            raise InputError(
                f"the argument has {len(re.findall('[0-9A-Fa-f]', each))} hex digits and other characters, or a digit "
                "is missing: each byte has two"
                if _ONLY_HEX.fullmatch(each) is None
                else "the argument has an odd number of hex digits: each byte has two"
            )
    return lines


def _input(given: str, kind: InputKind | None, directory: str, *, follow: bool) -> Input:
    if _is_hex(given, kind):
        return HexText(_messages([given]), "the argument")
    if given == "-":
        path = os.path.join(directory, "input")
        with open(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        return _of_file(path, "standard input", kind)
    if is_uri(given):
        return Segments(given)
    if os.path.isdir(given):
        if kind not in (None, InputKind.SEGMENTS):
            raise InputError(f"{given} is a directory: --as {kind} is for files")
        if not follow:
            _expect_segments(given)
        return Segments(given)
    if not os.path.exists(given):
        raise InputError(f"there is no file {given}, and it is not a message in hex digits")
    return _of_file(given, given, kind)


def _expect_segments(directory: str) -> None:
    with os.scandir(directory) as files:
        if not any(each.name.endswith(".parquet") and not each.name.startswith((".", "_")) for each in files):
            raise InputError(f"{directory} has no segments: no file in it ends with .parquet")


def _of_file(path: str, name: str, kind: InputKind | None) -> Input:
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
        is_whole = not file.read(1)
    if not head:
        raise InputError(f"{name} is empty: it has no messages")
    kind = _recognised(head, is_whole, path, name) if kind is None else kind
    if kind == InputKind.SEGMENTS:
        return Segments(path)
    if kind == InputKind.PARQUET:
        return ArrowFile(path, name, "parquet")
    if kind == InputKind.ARROW:
        return ArrowFile(path, name, "arrow" if head.startswith(b"ARROW1") else "arrow stream")
    if kind == InputKind.HEX:
        return HexText(_Lines(path, name), name, os.path.getsize(path))
    return Recvlogical(path, name) if kind == InputKind.RECVLOGICAL else RawFile(path, name)


def _recognised(head: bytes, is_whole: bool, path: str, name: str) -> InputKind:
    if head.startswith(b"PAR1"):
        return InputKind.SEGMENTS if _is_segment(path, name) else InputKind.PARQUET
    if head.startswith((b"ARROW1", _ARROW_STREAM)):
        return InputKind.ARROW
    if b"\0" not in head:
        text = head.decode("ascii", "replace")
        if _HEX.search(text) or _ONLY_HEX.fullmatch(text):
            return InputKind.HEX
    other = next((what for beginning, what in _OTHERS.items() if head.startswith(beginning)), None)
    if other is not None:
        raise InputError(f"{name} is {other}; messages of pgoutput are expected")
    # Nearly every message has a zero byte near its beginning, and text has none.
    if head[0] not in FIELDS or (b"\0" not in head[:256] and len(head) > 1 and head[:2] != b"E\n"):
        raise InputError(
            f"{name} is something else: it does not begin with a message of pgoutput. If it is damaged, show it with "
            "--as raw or --as recvlogical"
        )
    try:
        end = end_of_message(head + b"\0" if is_whole else head, 0, False, ord("\n"))
    except (CutOffError, DamagedMessageError):
        return InputKind.RECVLOGICAL if head.endswith(b"\n") else InputKind.RAW
    return InputKind.RECVLOGICAL if head[end : end + 1] == b"\n" else InputKind.RAW


def _is_segment(path: str, name: str) -> bool:
    import pyarrow.parquet as pq

    try:
        return b"pgoutput_fast.format" in (pq.read_metadata(path).metadata or {})
    except (pa.ArrowException, OSError) as problem:
        raise InputError(f"{name} is a Parquet file that is damaged or cut off: {problem}") from None


@dataclass(frozen=True)
class _Lines:
    """The lines of a text; every iteration starts at the beginning."""

    path: str
    name: str

    def __iter__(self) -> Iterator[str]:
        with open(self.path, encoding="ascii", errors="replace") as file:
            yield from file
