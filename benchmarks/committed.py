"""Compares the committed view with the changes as sent.

The cases are plain transactions, transactions that are split between calls, and one large streamed transaction.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

import pgoutput_fast as pgo
from benchmarks import corpora
from benchmarks.timing import interleaved
from pgoutput_fast.encode import encode_stream_commit, encode_stream_start, encode_stream_stop

__all__ = ["rows", "streamed"]

XID = 900
CUT_MESSAGES = 1000  # so that most calls end inside a transaction
BATCH_MESSAGES = 65_536
SPILL_BYTES = 1 << 24
FILE_PIECE_BYTES = 1 << 20

AS_SENT = pgo.Options()
COMMITTED = pgo.Options(transactions="committed")
IN_MEMORY = pgo.Options(transactions="committed", memory_limit=1 << 40)


def streamed(corpus: corpora.Corpus) -> pa.Array:
    """The corpus as one streamed transaction: every transaction becomes a block, every change gets an xid."""
    payloads = corpus.payloads
    kinds = pc.binary_slice(payloads, 0, 1)
    changed = pc.binary_replace_slice(payloads, 1, 1, XID.to_bytes(4))
    changed = pc.if_else(pc.equal(kinds, b"B"), encode_stream_start(XID, False), changed)
    changed = pc.if_else(pc.equal(kinds, b"C"), encode_stream_stop(), changed)
    first = [encode_stream_start(XID, True), encode_stream_stop()]
    return pa.concat_arrays([pa.array(first), changed, pa.array([encode_stream_commit(XID, 1, 2, 0)])])


def rows(scale: float, rounds: int, seed: int) -> Iterator[tuple[str, str, str]]:
    """Yields (case, CPU ns per message, ratio to the cost of the same stream as sent) for every case.

    Raises:
        AssertionError: if the two views give different rows.
    """
    tasks: dict[str, Callable[[], int]] = {}
    sizes: dict[str, int] = {}
    beside: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as directory:
        spilling = pgo.Options(transactions="committed", memory_limit=SPILL_BYTES, spill_directory=directory)
        for name in corpora.FULL_MESSAGES:
            corpus = corpora.corpus(name, scale, seed)
            cases = [
                (f"{name}, one call", corpus.payloads, len(corpus.payloads), COMMITTED),
                (f"{name}, calls of {BATCH_MESSAGES:,}", corpus.payloads, BATCH_MESSAGES, COMMITTED),
            ]
            if name == "wide text":
                wide = streamed(corpus)
                cases += [
                    (f"{name}, calls of {CUT_MESSAGES:,}", corpus.payloads, CUT_MESSAGES, COMMITTED),
                    (f"{name}, streamed, in memory", wide, BATCH_MESSAGES, IN_MEMORY),
                    (f"{name}, streamed, through files", wide, BATCH_MESSAGES, spilling),
                ]
            for label, payloads, size, options in cases:
                sent = f"{label}, as sent"
                for each, how in ((sent, AS_SENT), (label, options)):
                    tasks[each] = functools.partial(_run, payloads, size, how)
                    sizes[each] = len(payloads)
                beside[label] = sent
                assert tasks[sent]() == tasks[label]() == sum(t.num_rows for t in corpus.tables.values())
            if name == "wide text":
                file = f"{name}, only written to a file and read again"
                tasks[file] = functools.partial(_through_a_file, wide, directory)
                sizes[file], beside[file] = len(wide), f"{name}, streamed, through files, as sent"
        measured = interleaved(tasks, {}, rounds)
    for label, seconds in measured.items():
        ratio = 1 / seconds.speed_beside(measured[beside.get(label, label)])
        yield label, f"{seconds.seconds / sizes[label] * 1e9:.0f}", f"{ratio:.2f}"


def _run(payloads: pa.Array, size: int, options: pgo.Options) -> int:
    """The number of rows in the result."""
    if size >= len(payloads):
        return _count(pgo.decode(payloads, options=options))
    batches = (payloads.slice(at, size) for at in range(0, len(payloads), size))
    with pgo.Decoder(options) as decoder:
        return sum(_count(out) for out in decoder.stream(batches))


def _through_a_file(payloads: pa.Array, directory: str) -> int:
    """Writes the bytes of payloads to a file and reads them again. Returns their number."""
    data = memoryview(payloads.buffers()[2])
    piece = memoryview(bytearray(FILE_PIECE_BYTES))
    with tempfile.TemporaryFile(buffering=0, dir=directory) as file:
        for at in range(0, len(data), FILE_PIECE_BYTES):
            file.write(data[at : at + FILE_PIECE_BYTES])
        file.seek(0)
        return sum(iter(lambda: file.readinto(piece), 0))


def _count(out: pgo.Decoded) -> int:
    return sum(each.batch.num_rows for each in out.changes)
