"""Several threads decode what one decodes, bit by bit: the same batches, the same records, the same errors."""

from __future__ import annotations

import _thread
import gc
import mmap
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from benchmarks.corpora import corpus, shapes

import pgoutput_fast as pgo
from pgoutput_fast import Decoded, DecodeError, Decoder, Options, encode
from pgoutput_fast._core.rows import threads as native
from pgoutput_fast._core.rows.planning import use_windows
from pgoutput_fast.encode import ColumnSpec, RelationSpec
from support.forms import and_slow
from support.raw_messages import INT4, begin, commit
from support.streams import RandomChoices, Stream, damage, make_stream

THREADS = [2, 3, 8]
RECORDS = ("transactions", "outcomes", "truncates", "messages", "rejects")


@pytest.fixture
def small_windows() -> Iterator[None]:
    """Windows of five messages: so that small streams keep several threads busy."""
    before = use_windows(5)
    yield
    use_windows(before)


def assert_same(one: Decoded, other: Decoded) -> None:
    assert [(each.relation, each.batch.num_rows) for each in one.changes] == [
        (each.relation, each.batch.num_rows) for each in other.changes
    ]
    for a, b in zip(one.changes, other.changes, strict=True):
        b.batch.validate(full=True)
        # Bytes, since NaN is no NaN's equal.
        assert a.batch.serialize().equals(b.batch.serialize())
    for name in RECORDS:
        assert getattr(one, name).equals(getattr(other, name)), name


def outcome(stream: Stream, cuts: list[int], **options: Any) -> list[Decoded | str]:
    """What each call gives: rows and records, or what it raises."""
    decoder = Decoder(Options(**options))
    results: list[Decoded | str] = []
    ends = [*cuts, len(stream.payloads)]
    for start, end in zip([0, *cuts], ends, strict=True):
        try:
            results.append(decoder.decode(stream.payloads[start:end], lsn=stream.lsns[start:end]))
        except DecodeError as error:
            results.append(str(error))
    return results


def assert_all_same(one: list[Decoded | str], other: list[Decoded | str]) -> None:
    for a, b in zip(one, other, strict=True):
        if isinstance(a, str) or isinstance(b, str):
            assert a == b
        else:
            assert_same(a, b)


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize(
    ("mode", "on_error"),
    and_slow(
        [("as_sent", "quarantine"), ("committed", "raise")],
        [("as_sent", "raise"), ("committed", "quarantine")],
    ),
)
def test_random_streams(mode: str, on_error: str) -> None:
    for seed in range(150):
        choices = RandomChoices(seed)
        stream = make_stream(choices, 10, malformed=seed % 3 == 2)
        stream = damage(choices, stream, choices.below(4))
        cuts = sorted({choices.below(len(stream.payloads) + 1) for _ in range(2)})
        options = {"transactions": mode, "on_error": on_error, "batch_rows": 2 + choices.below(6)}
        one = outcome(stream, cuts, **options)
        for threads in (2, 5):
            assert_all_same(one, outcome(stream, cuts, threads=threads, **options))


@pytest.mark.parametrize("on_error", ["quarantine"])
def test_batches_do_not_depend_on_windows(on_error: str) -> None:
    for seed in range(60):
        choices = RandomChoices(seed)
        stream = damage(choices, make_stream(choices, 10), choices.below(4))
        options = {"on_error": on_error, "batch_rows": 2 + choices.below(6)}
        whole = outcome(stream, [], **options)
        before = use_windows(1 + seed % 7)
        try:
            assert_all_same(whole, outcome(stream, [], threads=3, **options))
        finally:
            use_windows(before)


@pytest.mark.parametrize("name", ["wide text", "wide binary", "pgbench"])
@pytest.mark.parametrize("threads", THREADS)
def test_corpora(name: str, threads: int) -> None:
    payloads = corpus(name, 0.3 if name == "pgbench" else 0.2).payloads
    assert_same(pgo.decode(payloads), pgo.decode(payloads, options=Options(threads=threads)))


def test_tagged_rows() -> None:
    payloads = corpus("pgbench", 0.1).payloads
    tagged, state = pgo.tag(payloads)
    one = pgo.decode_tagged(tagged, state.catalog)
    assert_same(one, pgo.decode_tagged(tagged, state.catalog, options=Options(threads=3)))


OIDS = range(16_384, 16_388)


def in_turn(count: int, bad: dict[int, bytes]) -> list[bytes]:
    """Inserts into four tables in turn, with others at some places among them."""
    relations = [RelationSpec(oid, "public", f"t{oid}", (ColumnSpec("a", INT4),)) for oid in OIDS]
    inserts = [encode.encode_insert(OIDS[k % 4], [str(k)]) for k in range(count)]
    for place, message in bad.items():
        inserts[place] = message
    return [begin(), *map(encode.encode_relation, relations), *inserts, commit()]


@pytest.mark.parametrize("threads", [1, *THREADS])
@pytest.mark.parametrize("small", [False, True])
def test_the_first_error_is_raised_and_the_call_taken_back(threads: int, small: bool) -> None:
    # In the first table's second batch, further ahead in the third one's, and a message that is none, behind both.
    bad = {
        2_002: encode.encode_insert(OIDS[2], ["early"]),
        3_000: encode.encode_insert(OIDS[0], ["late"]),
        6_000: b"?",
    }
    before = use_windows(4_000 if small else 1 << 16)
    try:
        decoder = Decoder(Options(threads=threads, batch_rows=100))
        with pytest.raises(DecodeError) as raised:
            decoder.decode(in_turn(8_000, bad))
        # A window is tagged before any value is looked at: then the message that is none comes first.
        assert raised.value.seq == (3_005 if small else 6_005)
        good = decoder.decode(in_turn(8_000, {}))
        assert sum(each.batch.num_rows for each in good.changes) == 8_000
        assert good.table("public.t16385").column("a").to_pylist() == list(range(1, 8_000, 4))
    finally:
        use_windows(before)


def test_long_values_close_batches() -> None:
    rows = [encode.encode_insert(OIDS[0], ["x" * (k % 5_000)]) for k in range(4_000)]
    relation = RelationSpec(OIDS[0], "public", "t", (ColumnSpec("a", 25),))
    payloads = pa.array([begin(), encode.encode_relation(relation), *rows, commit()], pa.binary())
    one = pgo.decode(payloads, options=Options(batch_bytes=100_000))
    assert len(one.changes) > 50
    assert max(each.batch.nbytes for each in one.changes) < 300_000
    for threads in THREADS:
        assert_same(one, pgo.decode(payloads, options=Options(batch_bytes=100_000, threads=threads)))


@pytest.mark.parametrize("threads", and_slow([3], [1]))
def test_what_a_call_made_goes_with_it(threads: int) -> None:
    """Without the garbage collector: nothing that leads in a circle holds batches."""
    payloads = corpus("wide text", 0.2).payloads
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            pgo.decode(payloads, options=Options(threads=threads))
        before = resident()
        for _ in range(20):
            pgo.decode(payloads, options=Options(threads=threads))
        assert resident() - before < 100 << 20, "bytes: 20 results are 600 MB"
    finally:
        gc.enable()


def test_an_interrupted_call_is_taken_back() -> None:
    """Ctrl-C at any moment: no thread goes on, and the decoder is what it was before the call."""
    payloads = corpus("pgbench", 0.2).payloads
    whole = pgo.decode(payloads)
    decoder = Decoder(Options(threads=3))
    interrupted, at_work = 0, False

    def interrupt(*_: object) -> None:
        if at_work:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    # A signal during a collection would be raised in what is called behind it, such as that of hypothesis, and ignored.
    gc.disable()
    try:
        for k in range(60):
            came = None
            signal.setitimer(signal.ITIMER_REAL, 0.0002 * (1 + k))
            try:
                at_work = True
                came = decoder.decode(payloads)
                at_work = False
            except KeyboardInterrupt:
                interrupted += 1
            at_work = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            if came is None:
                assert decoder.state.next_seq % len(payloads) == 0
        assert interrupted > 5
        last = decoder.decode(payloads)
        assert sum(each.batch.num_rows for each in last.changes) == sum(
            each.batch.num_rows for each in whole.changes
        )
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)


def test_fewer_threads_than_asked_for_do_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = corpus("pgbench", 0.2).payloads
    one = pgo.decode(payloads)
    start = _thread.start_new_thread
    started = []

    def only_one(*arguments: Any) -> int:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(arguments)
        return start(*arguments)

    monkeypatch.setattr(native, "start_new_thread", only_one)
    assert_same(one, pgo.decode(payloads, options=Options(threads=4)))
    assert len(started) == 1


def resident() -> int:
    """Bytes that this process has in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_a_decoder_goes_on() -> None:
    """A decoder gets its working memory and its batches back, even if a call failed."""
    payloads = corpus("pgbench", 0.05).payloads
    decoder, other = Decoder(Options(threads=3)), Decoder()
    for _ in range(3):
        assert_same(other.decode(payloads), decoder.decode(payloads))
        for each in (other, decoder):
            with pytest.raises(DecodeError):
                each.decode(pa.concat_arrays([payloads, pa.array([b"?"], pa.binary())]))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
def test_more_relations_than_a_decoder_keeps_memory_for(threads: int) -> None:
    options = Options(threads=threads)
    shape = shapes.relations(3_000, 12_000, 3_000)
    decoder, other = Decoder(options), Decoder(Options(batch_rows=2))
    for each in (decoder, other):
        each.decode(shape.known)
    for call in shape.calls:
        found, wanted = decoder.decode(call), other.decode(call)
        assert len({each.relation.oid for each in found.changes}) == 3_000
        assert_same(wanted, found)


@pytest.mark.parametrize("threads", [1, 3])
def test_lsns_that_a_later_call_lacks(threads: int) -> None:
    """A transaction that two calls bring, of which only the first has LSNs: those of the second are null."""
    payloads = in_turn(8, {})
    for second in (None, pa.array([None] * (len(payloads) - 8), pa.int64())):
        decoder = Decoder(Options(transactions="committed", threads=threads))
        decoder.decode(payloads[:8], lsn=pa.array(range(100, 108), pa.int64()))
        out = decoder.decode(payloads[8:], lsn=second)
        came = {
            seq: lsn
            for each in out.changes
            for seq, lsn in zip(
                each.batch.column("_seq").to_pylist(), each.batch.column("_lsn").to_pylist(), strict=True
            )
        }
        assert came == {5: 105, 6: 106, 7: 107, 8: None, 9: None, 10: None, 11: None, 12: None}
