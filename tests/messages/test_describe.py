"""describe(): each kind of message, each prefix of a message, damaged messages as the decoder sees them, and any bytes."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast.base.errors import reason_text
from pgoutput_fast.catalog.formatting import format_type
from pgoutput_fast.encode import UNCHANGED, Binary, ColumnSpec, RelationSpec
from pgoutput_fast.protocol import kinds
from pgoutput_fast.protocol.reasons import Reason
from support import fixtures, pg
from support.forms import and_slow
from support.paths import DOCS
from support.strategies import streams
from support.streams import RandomChoices, make_stream

ORDERS = RelationSpec(
    16401,
    "public",
    "Order Lines",
    (
        ColumnSpec("id", 23, key=True),
        ColumnSpec("amount", 1700, (10 << 16 | 2) + 4),
        ColumnSpec("mood", 16500),
        ColumnSpec("times", 1185, 3),
    ),
)
LSNS = ("0/1B0D988", "16/B374D848")
TIME = 825505200123456

EXPECTED = [
    (
        encode.encode_begin(LSNS[0], TIME, 725),
        "Begin, 21 bytes\n"
        "  final_lsn: 0/1B0D988 (28367240)\n"
        "  commit_timestamp: 2026-02-27T11:00:00.123456Z\n"
        "  xid: 725",
    ),
    (
        encode.encode_commit(*LSNS, -(2**62)),
        "Commit, 26 bytes\n"
        "  flags: none\n"
        "  commit_lsn: 0/1B0D988 (28367240)\n"
        "  end_lsn: 16/B374D848 (97500059720)\n"
        "  commit_timestamp: beyond the years 1 to 9999 (-4611686018427387904 microseconds since 2000)",
    ),
    (
        encode.encode_origin(77, "node\x1b[31m"),
        "Origin, 19 bytes\n  origin_lsn: 0/4D (77)\n  name: 'node\\x1b[31m'",
    ),
    (
        encode.encode_relation(ORDERS),
        "Relation, 84 bytes\n"
        "  oid: 16401\n"
        "  namespace: public\n"
        '  name: "Order Lines"\n'
        "  replica_identity: d (default: the primary key)\n"
        "  columns: 4\n"
        "    1 id: int4, key\n"
        "    2 amount: numeric(10,2)\n"
        "    3 mood: type 16500\n"
        "    4 times: timestamptz(3)[]",
    ),
    (
        encode.encode_relation(RelationSpec(2, "pg_catalog", "t", (), "f"), xid=0x64),
        "Relation in a stream block, 15 bytes\n"
        "  xid: 100\n"
        "  oid: 2\n"
        '  namespace: "" (pg_catalog)\n'
        "  name: t\n"
        "  replica_identity: f (full: all columns)\n"
        "  columns: 0",
    ),
    (
        encode.encode_type(16500, "public", "mood"),
        "Type, 17 bytes\n  oid: 16500\n  namespace: public\n  name: mood",
    ),
    (
        encode.encode_insert(16401, ["1", None, UNCHANGED, Binary(b"\0\1")]),
        "Insert, 23 bytes\n"
        "  relation_oid: 16401\n"
        "  new tuple (N), 4 columns\n"
        "    1: text, 1 byte: '1'\n"
        "    2: null\n"
        "    3: unchanged TOAST value, not sent\n"
        "    4: binary, 2 bytes: hex 0001",
    ),
    (
        encode.encode_update(16401, [b"\xff", "a\nb"], key=["7", None], xid=726),
        "Update in a stream block, 36 bytes\n"
        "  xid: 726\n"
        "  relation_oid: 16401\n"
        "  key tuple (K), 2 columns\n"
        "    1: text, 1 byte: '7'\n"
        "    2: null or not sent\n"
        "  new tuple (N), 2 columns\n"
        "    1: text, 1 byte: not UTF-8, hex ff\n"
        "    2: text, 3 bytes: 'a\\nb'",
    ),
    (
        encode.encode_delete(16401, old=["é" * 100, Binary(bytes(100)), ""]),
        "Delete, 323 bytes\n"
        "  relation_oid: 16401\n"
        "  old tuple (O), 3 columns\n"
        f"    1: text, 200 bytes: '{'é' * 60}'...\n"
        f"    2: binary, 100 bytes: hex {'00' * 32}...\n"
        "    3: text, 0 bytes: ''",
    ),
    (
        encode.encode_truncate([1, 2], cascade=True, restart_identity=True),
        "Truncate, 14 bytes\n"
        "  relations: 2\n"
        "  flags: cascade, restart identity\n"
        "  relation_oid: 1\n"
        "  relation_oid: 2",
    ),
    (
        encode.encode_message(5, "p", b"hello"),
        "Message, 21 bytes\n  transactional: yes\n  lsn: 0/5 (5)\n  prefix: 'p'\n  content: 5 bytes: 'hello'",
    ),
    (encode.encode_stream_start(9, True), "Stream Start, 6 bytes\n  xid: 9\n  first_segment: yes"),
    (encode.encode_stream_stop(), "Stream Stop, 1 byte"),
    (
        encode.encode_stream_commit(9, 1, 2, 0),
        "Stream Commit, 30 bytes\n"
        "  xid: 9\n"
        "  flags: none\n"
        "  commit_lsn: 0/1 (1)\n"
        "  end_lsn: 0/2 (2)\n"
        "  commit_timestamp: 2000-01-01T00:00:00Z",
    ),
    (encode.encode_stream_abort(9, 10), "Stream Abort, 9 bytes\n  xid: 9\n  subxid: 10"),
    (
        encode.encode_stream_abort(9, 9, 3, 0),
        "Stream Abort, 25 bytes\n"
        "  xid: 9\n"
        "  subxid: 9\n"
        "  abort_lsn: 0/3 (3)\n"
        "  abort_timestamp: 2000-01-01T00:00:00Z",
    ),
    *(
        (
            make(1, 2, 0, 9, "gid 'x'"),
            f"{name}, {size} bytes\n"
            f"{flags}"
            "  prepare_lsn: 0/1 (1)\n"
            "  end_lsn: 0/2 (2)\n"
            "  prepare_timestamp: 2000-01-01T00:00:00Z\n"
            "  xid: 9\n"
            "  gid: \"gid 'x'\"",
        )
        for make, name, size, flags in (
            (encode.encode_begin_prepare, "Begin Prepare", 37, ""),
            (encode.encode_prepare, "Prepare", 38, "  flags: none\n"),
            (encode.encode_stream_prepare, "Stream Prepare", 38, "  flags: none\n"),
        )
    ),
    (
        encode.encode_commit_prepared(1, 2, 0, 9, "g"),
        "Commit Prepared, 32 bytes\n"
        "  flags: none\n"
        "  commit_lsn: 0/1 (1)\n"
        "  end_lsn: 0/2 (2)\n"
        "  commit_timestamp: 2000-01-01T00:00:00Z\n"
        "  xid: 9\n"
        "  gid: 'g'",
    ),
    (
        encode.encode_rollback_prepared(1, 2, 0, 1, 9, "g"),
        "Rollback Prepared, 40 bytes\n"
        "  flags: none\n"
        "  prepare_end_lsn: 0/1 (1)\n"
        "  rollback_end_lsn: 0/2 (2)\n"
        "  prepare_timestamp: 2000-01-01T00:00:00Z\n"
        "  rollback_timestamp: 2000-01-01T00:00:00.000001Z\n"
        "  xid: 9\n"
        "  gid: 'g'",
    ),
]


@pytest.mark.parametrize(("message", "text"), EXPECTED, ids=[text.split(",")[0] for _, text in EXPECTED])
def test_each_kind(message: bytes, text: str) -> None:
    assert pgo.describe(message) == text
    assert pgo.describe(bytearray(message)) == pgo.describe(memoryview(message)) == text


def test_every_kind_is_there() -> None:
    assert {message[0] for message, _ in EXPECTED} == set(kinds.MESSAGE_KINDS)


def test_a_catalog_gives_names() -> None:
    decoder = pgo.Decoder()
    decoder.decode([encode.encode_type(16500, "s", "m\x07d"), encode.encode_relation(ORDERS)])
    update = encode.encode_update(16401, ["1", "2.50", "ok", None], key=["7", None, None, None])
    text = (
        "Update, 43 bytes\n"
        '  relation_oid: 16401 (public."Order Lines")\n'
        "  key tuple (K), 4 columns\n"
        "    1 id int4: text, 1 byte: '7'\n"
        "    2 amount numeric(10,2): not sent\n"
        '    3 mood s."m\\x07d": not sent\n'
        "    4 times timestamptz(3)[]: not sent\n"
        "  new tuple (N), 4 columns\n"
        "    1 id int4: text, 1 byte: '1'\n"
        "    2 amount numeric(10,2): text, 4 bytes: '2.50'\n"
        "    3 mood s.\"m\\x07d\": text, 2 bytes: 'ok'\n"
        "    4 times timestamptz(3)[]: null"
    )
    assert pgo.describe(update, catalog=decoder.catalog) == text
    assert pgo.describe(update, catalog=decoder.catalog.relations[0]) == text
    truncate = encode.encode_truncate([16401, 5])
    assert '16401 (public."Order Lines")\n' in pgo.describe(truncate, catalog=decoder.catalog)
    other = pgo.describe(encode.encode_insert(16401, ["1"]), catalog=decoder.catalog)
    assert "1 column; the catalog's version of the table has 4, so no names are shown\n    1: text" in other


def test_what_is_not_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match=r"not str: of hex digits pass bytes\.fromhex"):
        pgo.describe("\\x42")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not list"):
        pgo.describe([b"B"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="catalog must be a Catalog or a Relation, not dict"):
        pgo.describe(b"B", catalog={})  # type: ignore[arg-type]


# ---- what the form of a message is ---------------------------------------------------------------------------------


def in_streams(payloads: Sequence[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each message, and whether it is from a stream block."""
    inside = False
    for payload in payloads:
        yield payload, inside
        if payload[0] in kinds.BOUNDARIES:
            inside = payload[0] == kinds.MSG_STREAM_START


def damaged_at(text: str) -> int | None:
    found = re.findall(r"^  damaged at byte (\d+): ", text, re.MULTILINE)
    assert len(found) <= 1
    return int(found[0]) if found else None


@given(streams(malformed=True))
@settings(max_examples=60, deadline=None)
def test_every_message_of_the_writer_is_described(stream: Any) -> None:
    for payload, inside in in_streams(stream.payloads):
        text = pgo.describe(payload, in_stream=inside)
        assert damaged_at(text) is None
        # Without a hint: the same, or another form that fits as well, with a note.
        guessed = pgo.describe(payload)
        assert guessed == text or "the bytes also fit a message from a stream block" in guessed
        assert damaged_at(guessed) is None


@pytest.mark.parametrize("path", fixtures.FILES, ids=lambda path: path.stem)
def test_what_servers_sent_is_described(path: Any) -> None:
    payloads = [data for _, data in fixtures.read(path)]
    decoder = pgo.Decoder()
    decoder.decode(payloads)
    notes = 0
    for payload, inside in in_streams(payloads):
        text = pgo.describe(payload, in_stream=inside, catalog=decoder.catalog)
        assert damaged_at(text) is None
        assert text.startswith(kinds.MESSAGE_KINDS[payload[0]])
        guessed = pgo.describe(payload, catalog=decoder.catalog)
        assert guessed == text or "\n  note: " in guessed
        notes += guessed != text
    # The form is found for nearly all of them.
    assert notes <= len(payloads) // 20


def test_a_message_that_fits_both_forms() -> None:
    # As a plain message: LSN 1/0, prefix "abcdefgh". Its bytes are those of another message from a stream block.
    message = encode.encode_message("1/0", "abcdefgh", b"x")
    plain, streamed = pgo.describe(message, in_stream=False), pgo.describe(message, in_stream=True)
    assert damaged_at(plain) is None
    assert damaged_at(streamed) is None
    note = "\n  note: the bytes also fit a message from a stream block: in_stream=True describes that"
    assert pgo.describe(message) == plain + note
    assert "  xid: 16777216\n" in streamed


# ---- damage --------------------------------------------------------------------------------------------------------


def messages(seed: int, steps: int = 25) -> list[tuple[bytes, bool]]:
    return list(in_streams(make_stream(RandomChoices(seed), steps).payloads))


@pytest.mark.parametrize("seed", range(4))
def test_every_prefix_is_damaged_at_its_end(seed: int) -> None:
    found = messages(seed)
    assert len(found) > 30
    for payload, inside in {(payload[:400], inside) for payload, inside in found}:
        whole = pgo.describe(payload, in_stream=inside).split("\n")[1:]
        for size in range(min(len(payload), 150)):
            text = pgo.describe(payload[:size], in_stream=inside)
            if payload[:1] == b"A" and size == 9:  # without the fields of streaming=parallel
                assert damaged_at(text) is None
                continue
            assert damaged_at(text) == size, (payload, size)
            # Everything before the damage is there, but for a value that is cut.
            fields = text.split("\n")[1:-1]
            assert fields[:-1] == whole[: len(fields)][:-1]
            assert not fields or whole[len(fields) - 1].startswith(fields[-1])


# The faults that are of a message alone. Another number of cells than columns is one of two messages.
OF_THE_BYTES = {
    reason_text(reason)
    for reason in Reason
    if reason <= Reason.DUPLICATE_COLUMN and reason != Reason.BAD_CELL_COUNT
} | {reason_text(Reason.TEXT_PAYLOAD), reason_text(Reason.FRAMED_PAYLOAD)}


def error_of(state: pgo.StreamState, payload: bytes) -> pgo.DecodeError | None:
    """The decoder's error for a message that comes next."""
    try:
        pgo.Decoder(state=state).decode([payload])
    except pgo.DecodeError as problem:
        return problem
    return None


@pytest.mark.parametrize("seed", and_slow(range(2), range(2, 6)))
def test_damage_is_where_the_decoder_finds_it(seed: int) -> None:
    choices = RandomChoices(100 + seed)
    decoder = pgo.Decoder()
    stream = make_stream(choices, 25)
    compared = 0
    for number, (payload, inside) in enumerate(in_streams(stream.payloads)):
        if number in stream.sessions:
            decoder.start_session()
        for _ in range(15):
            at = choices.below(len(payload))
            changed = bytes([choices.below(256)])
            ways = (payload[:at] + changed + payload[at + 1 :], payload[:at], payload + changed)
            bad = ways[choices.below(3)]
            said = damaged_at(pgo.describe(bad, in_stream=inside))
            problem = error_of(decoder.state, bad)
            if problem is None:
                assert said is None
            elif problem.reason in OF_THE_BYTES:
                assert said is not None
                # Of several faults in a Relation message, the decoder may find another one first.
                assert said == problem.byte_offset or bad[:1] == b"R"
                compared += 1
        decoder.decode([payload])
    assert compared > 100


@given(
    st.binary(max_size=80), st.sampled_from([None, False, True]), st.sampled_from([*kinds.MESSAGE_KINDS, 0])
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_described_without_control_characters(
    data: bytes, in_stream: bool | None, kind: int
) -> None:
    for each in (data, bytes([kind]) + data, bytes([kind]) + struct.pack(">I", 1) + b"N\0\3t" + data):
        text = pgo.describe(each, in_stream=in_stream)
        assert text
        assert all(character == "\n" or character.isprintable() for character in text)


def test_names_and_values_cannot_reach_the_terminal() -> None:
    hostile = "\x1b]0;owned\x07\r\n  damaged\u202e\x9b31m\u2028\\"
    spec = RelationSpec(1, hostile, hostile, (ColumnSpec(hostile, 25),))
    decoder = pgo.Decoder()
    decoder.decode([encode.encode_type(25000, hostile, hostile), encode.encode_relation(spec)])
    for message in (
        encode.encode_relation(spec),
        encode.encode_type(25000, hostile, hostile),
        encode.encode_insert(1, [hostile]),
        encode.encode_message(1, hostile, hostile.encode()),
        encode.encode_origin(1, hostile),
        encode.encode_prepare(1, 2, 0, 9, hostile),
    ):
        text = pgo.describe(message, in_stream=False, catalog=decoder.catalog)
        assert all(character == "\n" or character.isprintable() for character in text)
        assert r"\x1b]0;owned\x07\r\n" in text
        assert damaged_at(text) is None


@pytest.mark.parametrize(
    ("message", "at", "what"),
    [
        (b"", 0, "the payload is empty; expected: a message's tag byte"),
        (b"Z", 0, "unknown message tag"),
        (b"\\x4200", 0, "this is text, as SQL output shows bytes"),
        (b"4200ab", 0, "this is text, as SQL output shows bytes"),
        (b"w" + bytes(30), 0, "pgoutput_fast.unframe() takes the message out of it"),
        (b"k" + bytes(17), 0, "pgoutput_fast.unframe() takes the message out of it"),
        (b"E!", 1, "bytes are left over after the message's end; expected: the message's end, not 1 more"),
        (b"S\0\0\0\1\2", 5, "flags; expected: first_segment from 0 to 1, not 2"),
        (b"I\0\0\0\1X", 5, "expected: the tag of a tuple, N, not 0x58"),
        (b"D\0\0\0\1N", 5, "expected: the tag of a tuple, K or O, not 0x4e"),
        (b"I\0\0\0\1N\0\1x", 8, "expected: the kind of column 1, n, u, t or b, not 0x78"),
        (b"I\0\0\0\1N\0\1t\xff\xff\xff\xff", 9, "expected: the length of column 1, not -1"),
        (b"I\0\0\0\1N\xff\xffn", 9, "expected: the kind of column 2 (1 byte from byte 9 on)"),
        (b"I\0\0\0\1N\0\1t\x7f\xff\xff\xff", 13, "the value of column 1 (2,147,483,647 bytes from byte 13 on)"),
        (b"T\x7f\xff\xff\xff\0", 6, "expected: the oid of relation 1 of 2,147,483,647 (4 bytes from byte 6 on)"),
        (b"T\0\0\0\0\0", 1, "expected: the number of relations, not 0"),
        (b"M\0" + bytes(8) + b"\0\xff\xff\xff\xfe", 11, "expected: the length of the content, not -2"),
        (b"R\0\0\0\1\0t\0z\0\0", 8, "unknown replica identity; expected: replica_identity d, n, f or i, not 0x7a"),
        (b"R\0\0\0\1\0t\0d\x80\0", 9, "expected: the number of columns, not -32768"),
        (b"R\0\0\0\1\0\xff\0d\0\0", 6, "a name is not valid UTF-8"),
        (b"B" + b"\x80" + bytes(19), 1, "an LSN has more than 63 bits; expected: final_lsn below 2^63"),
        (b"B" + bytes(8) + b"\x7f" + b"\xff" * 7 + bytes(4), 9, "a timestamp does not fit into int64"),
    ],
)  # fmt: skip
def test_what_is_wrong_and_where(message: bytes, at: int, what: str) -> None:
    text = pgo.describe(message, in_stream=False)
    assert damaged_at(text) == at
    assert what in text.split("\n")[-1]


def test_the_more_likely_form_of_a_damaged_message_is_shown() -> None:
    insert = encode.encode_insert(16401, ["1", "first"], xid=726)[:-2]
    text = pgo.describe(insert)
    assert text.startswith("Insert in a stream block, ")
    assert text.endswith("\n  note: as a plain message it would be damaged at byte 5")
    assert damaged_at(text) == len(insert)


def test_a_text_is_bounded() -> None:
    wide = pgo.describe(encode.encode_insert(1, [None] * 32000), in_stream=False)
    assert wide.endswith("\n    1600: null\n    and 30,400 more")
    many = pgo.describe(encode.encode_truncate(range(1, 100_001)), in_stream=False)
    assert many.endswith("\n  relation_oid: 100\n  and 99,900 more")
    assert (
        damaged_at(pgo.describe(encode.encode_truncate(range(1, 1001))[:-1], in_stream=False)) == 6 + 4000 - 1
    )
    long = pgo.describe(encode.encode_type(20000, "n" * 100_000, "t"), in_stream=False)
    assert len(long) < 400
    assert "... (100,000 characters)" in long


# ---- modifiers of types --------------------------------------------------------------------------------------------

COLUMNS = (
    "numeric(10,2)", "numeric", "numeric(5)[]", "varchar(20)", "char(3)", "bit(5)", "varbit(6)", "time(0)", "timetz(1)",
    "timestamp(2)", "timestamptz(3)", "interval", "interval(2)", "interval year", "interval year to month",
    "interval day to second(3)", "interval hour to minute", "interval second(1)", "varchar(7)[]", "int", "text[]",
    '"char"', "tsrange",
)  # fmt: skip


def test_modifiers_are_those_of_the_server(servers: pg.Servers) -> None:
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[max(servers)])
    columns = ", ".join(f"c{number} {each}" for number, each in enumerate(COLUMNS))
    rows = database.execute(
        f"CREATE TABLE modifiers ({columns})",
        "SELECT atttypid::int8, atttypmod, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'modifiers'::regclass AND attnum > 0 ORDER BY attnum",
    )
    database.drop()
    assert len(rows) == len(COLUMNS)
    # format_type gives some types their names of the SQL standard.
    standard = {
        "character varying": "varchar", "character": "bpchar", "bit varying": "varbit", "integer": "int4",
        '"char"': "char",
    }  # fmt: skip
    for oid, typmod, name in rows:
        zone = re.fullmatch(r"(timestamp|time)(\(\d\))? (with|without) time zone", name)
        if zone is not None:
            name = zone[1] + ("tz" if zone[3] == "with" else "") + (zone[2] or "")
        for word in sorted(standard, key=len, reverse=True):
            if re.match(rf"{re.escape(word)}(?!\w)", name):
                name = standard[word] + name[len(word) :]
                break
        assert format_type(int(oid), typmod) == name


# ---- the page ------------------------------------------------------------------------------------------------------


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "decoding.md").read_text().partition("## Look at a message\n")[2]
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", page, re.DOTALL)[:2]
    columns = ColumnSpec("id", 23), ColumnSpec("note", 25), ColumnSpec("amount", 1700, (10 << 16 | 2) + 4)
    orders = RelationSpec(16384, "public", "orders", columns)
    payloads = [
        encode.encode_begin(1, 0, 7),
        encode.encode_relation(orders),
        encode.encode_insert(16384, ["1", "first", "10.25"]),
    ]
    decoder = pgo.Decoder()
    decoder.decode(payloads)
    exec(compile(code, "decoding.md", "exec"), {"pgo": pgo, "payloads": payloads, "decoder": decoder})
    assert capsys.readouterr().out == printed
