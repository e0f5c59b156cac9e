"""Random streams, intact or damaged, and the comparison of both decoders on them.

All random choices come from a `Choices`, so that hypothesis (which shrinks) and the fuzzer (which is fast) make the
same kind of streams.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from cells.every_type import ALL, Cells
from cells.nested import DESCRIBED, EVERY, TYPES
from pgoutput_fast import Catalog, Decoded, DecodeError, Decoder, Options, StreamState, decode_tagged, tag
from pgoutput_fast.encode import (
    UNCHANGED,
    Binary,
    ColumnSpec,
    RelationSpec,
    Writer,
    encode_message,
    encode_type,
)
from pgoutput_fast.transactions.outcomes import TransactionOutcomes
from reference import messages as reference
from reference import output
from reference.nested import sent_name

T = TypeVar("T")


class Choices(Protocol):
    """The source of random choices."""

    def below(self, n: int) -> int:
        """An int from 0 to n - 1. Smaller numbers give simpler streams."""


class RandomChoices:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, n: int) -> int:
        return self._random.randrange(n)


def one_of(choices: Choices, options: Sequence[T]) -> T:
    return options[choices.below(len(options))]


@dataclasses.dataclass
class Stream:
    """Payloads, their LSNs, and the ordinals of the payloads that start a session."""

    payloads: list[bytes]
    lsns: list[int]
    sessions: set[int]

    def __repr__(self) -> str:
        lines = [f"    {payload!r}," for payload in self.payloads]
        return "Stream([\n" + "\n".join(lines) + f"\n], {self.lsns}, {self.sessions})"


USER_TYPES = {
    20001: ("public", "mood"),
    20002: ("public", "_mood"),
    20003: ("pg_catalog", "int4"),
    20004: ("pg_catalog", "_text"),
    20005: ("ext", "citext"),
    20006: ("ext", "_citext"),
}
# For a domain, a Type message has the name of the base type. Types without a name are identified by their oid alone.
NAMES = USER_TYPES | {
    oid: sent_name(oid, DESCRIBED) for oid, one in DESCRIBED.items() if not one.name.startswith("f")
}
ENRICHED = Catalog(types=TYPES)
ODD_TYPES = dict(
    zip(USER_TYPES, map(ALL.get, ["text", "text[]", "int4", "text[]", "text", "text[]"]), strict=True)
)


class _Maker:
    """Builds one stream through the encoder, callback by callback."""

    def __init__(self, choices: Choices, malformed: bool) -> None:
        self.c = choices
        self.malformed = malformed
        self.parallel = bool(choices.below(2))
        self.writer = self._writer()
        self.out: list[bytes] = []
        self.sessions: set[int] = set()
        self.next_xid = 700 + choices.below(3)
        self.lsn = 1000
        self.open: dict[int, list[int]] = {}
        self.prepared: list[tuple[int, str, int]] = []
        self.relations = [self._relation(16384 + k) for k in range(1 + choices.below(3))]

    def _writer(self) -> Writer:
        return Writer(4, streaming="parallel" if self.parallel else "on", two_phase=True, types=NAMES)

    def _relation(self, oid: int) -> RelationSpec:
        columns = []
        for k in range(self.c.below(5)):
            if self.c.below(6) == 0:
                oid_of_type, typmod = one_of(self.c, list(USER_TYPES)), -1
            else:
                cells = one_of(self.c, list(EVERY.values()))
                oid_of_type, typmod = cells.oid, cells.typmod
            columns.append(ColumnSpec(f"c{k}", oid_of_type, typmod, key=k == 0))
        name = one_of(self.c, ["t", "Order Lines", "t2"])
        return RelationSpec(
            oid,
            one_of(self.c, ["public", "pg_catalog", "s"]),
            name,
            tuple(columns),
            one_of(self.c, list("dfni")),
        )

    def _lsn(self) -> int:
        self.lsn += 1 + self.c.below(50)
        return self.lsn

    def _time(self) -> int:
        return 100_000_000 * self.c.below(100)

    def _xid(self) -> int:
        self.next_xid += 1
        return self.next_xid

    def _cell(self, column: ColumnSpec, unchanged: bool) -> Any:
        roll = self.c.below(12)
        if roll == 1:
            return None
        if roll == 2 and unchanged:
            return UNCHANGED
        cells: Cells = ODD_TYPES.get(column.type_oid) or next(
            each for each in EVERY.values() if each.oid == column.type_oid and each.typmod == column.typmod
        )
        binary = bool(self.c.below(2))
        good = [pair[binary] for pair in cells.both] + (cells.binary if binary else cells.text)
        if roll == 3:
            good = (cells.unrepresentable_binary if binary else cells.unrepresentable_text) or good
        elif roll == 4 and self.malformed and self.c.below(4) == 0:
            good = (cells.malformed_binary if binary else cells.malformed_text) or good
        if not good:
            return None
        raw = one_of(self.c, good)
        return Binary(raw) if binary else raw

    def _tuple(self, relation: RelationSpec, unchanged: bool = False) -> list[Any]:
        return [self._cell(column, unchanged) for column in relation.columns]

    def _change(self, xid: int | None) -> None:
        if self.c.below(15) == 1:
            # DDL: the same oid with other columns.
            k = self.c.below(len(self.relations))
            self.relations[k] = self._relation(self.relations[k].oid)
        relation = one_of(self.c, self.relations)
        roll = self.c.below(10)
        if roll < 4:
            made = self.writer.change(relation, "insert", self._tuple(relation), xid=xid)
        elif roll < 7:
            kind = one_of(self.c, ["", "old", "key"])
            before: dict[str, Any] = {kind: self._tuple(relation, True)} if kind else {}
            made = self.writer.change(relation, "update", self._tuple(relation, True), xid=xid, **before)
        elif roll < 8:
            before = {one_of(self.c, ["old", "key"]): self._tuple(relation)}
            made = self.writer.change(relation, "delete", xid=xid, **before)
        elif roll < 9:
            some = self.relations[: 1 + self.c.below(len(self.relations))]
            made = self.writer.truncate(
                some, cascade=bool(self.c.below(2)), restart_identity=bool(self.c.below(2)), xid=xid
            )
        else:
            made = self.writer.message(self._lsn(), "prefix", b"content", transactional=True)
        self.out += made

    def _changes(self, xid: int | None = None) -> None:
        for _ in range(self.c.below(5)):
            subxids = self.open.get(xid, []) if xid is not None else []
            if xid is not None and self.c.below(3) == 0:
                subxids.append(self._xid())
            who = one_of(self.c, [xid, *subxids]) if xid is not None else None
            if self.c.below(12) == 1:
                self.out += self.writer.relation(one_of(self.c, self.relations), xid=who)
            else:
                self._change(who)

    def _origin(self) -> None:
        if self.c.below(4) == 1:
            self.out += self.writer.origin(self._lsn(), "origin")

    def _plain(self) -> None:
        lsn, at = self._lsn(), self._time()
        self.out += self.writer.begin(self._xid(), lsn, at)
        self._origin()
        self._changes()
        self.out += self.writer.commit(lsn, self._lsn(), at)

    def _two_phase(self) -> None:
        xid, lsn, end, at, gid = (
            self._xid(),
            self._lsn(),
            self._lsn(),
            self._time(),
            one_of(self.c, ["g", "h"]),
        )
        self.out += self.writer.begin_prepare(xid, lsn, end, at, gid)
        self._origin()
        self._changes()
        self.out += self.writer.prepare(xid, lsn, end, at, gid)
        self.prepared.append((xid, gid, end))

    def _resolve(self) -> None:
        if not self.prepared:
            return
        xid, gid, end = self.prepared.pop(self.c.below(len(self.prepared)))
        if self.c.below(2):
            self.out += self.writer.commit_prepared(xid, self._lsn(), self._lsn(), self._time(), gid)
        else:
            self.out += self.writer.rollback_prepared(xid, end, self._lsn(), self._time(), self._time(), gid)

    def _block(self) -> None:
        first = not self.open or (len(self.open) < 3 and self.c.below(3) == 0)
        xid = self._xid() if first else one_of(self.c, list(self.open))
        self.open.setdefault(xid, [])
        self.out += self.writer.stream_start(xid)
        if first:
            self._origin()
        self._changes(xid)
        self.out += self.writer.stream_stop()

    def _end_stream(self) -> None:
        if not self.open:
            return
        xid = one_of(self.c, list(self.open))
        roll = self.c.below(5)
        parallel = {"abort_lsn": self._lsn(), "abort_timestamp": self._time()} if self.parallel else {}
        if roll < 2:
            self.out += self.writer.stream_commit(xid, self._lsn(), self._lsn(), self._time())
        elif roll == 2 and self.open[xid]:
            self.out += self.writer.stream_abort(xid, one_of(self.c, self.open[xid]), **parallel)
            return
        elif roll == 3:
            end = self._lsn()
            self.out += self.writer.stream_prepare(xid, self._lsn(), end, self._time(), "g")
            self.prepared.append((xid, "g", end))
        else:
            self.out += self.writer.stream_abort(xid, **parallel)
        del self.open[xid]

    def _session(self) -> None:
        self.sessions.add(len(self.out))
        self.writer = self._writer()
        self.open.clear()

    def _message(self) -> None:
        self.out += self.writer.message(self._lsn(), "p", b"now", transactional=False)

    def make(self, steps: int) -> Stream:
        ways: list[tuple[int, Callable[[], None]]] = [
            (4, self._plain), (4, self._block), (3, self._end_stream), (2, self._two_phase), (2, self._resolve),
            (1, self._message), (1, self._session if self.c.below(4) == 0 else self._plain),
        ]  # fmt: skip
        actions = [action for weight, action in ways for _ in range(weight)]
        for _ in range(steps):
            one_of(self.c, actions)()
        lsns = [self.c.below(4) * (1000 + k) for k in range(len(self.out))]
        return Stream(self.out, lsns, {s for s in self.sessions if s < len(self.out)})


def make_stream(choices: Choices, steps: int = 8, malformed: bool = False) -> Stream:
    return _Maker(choices, malformed).make(steps)


def damage(choices: Choices, stream: Stream, times: int) -> Stream:
    """Damages a stream: flips bits; cuts, lengthens, removes, doubles, swaps or invents messages."""
    payloads = list(stream.payloads)
    for _ in range(times):
        if not payloads:
            break
        k = choices.below(len(payloads))
        payload = payloads[k]
        way = choices.below(9)
        if way <= 1 and payload:
            at = choices.below(len(payload))
            payloads[k] = payload[:at] + bytes([payload[at] ^ (1 << choices.below(8))]) + payload[at + 1 :]
        elif way == 2 and payload:
            at = choices.below(len(payload))
            payloads[k] = payload[:at] + bytes([choices.below(256)]) + payload[at + 1 :]
        elif way == 3:
            payloads[k] = payload[: choices.below(len(payload) + 1)]
        elif way == 4:
            at = choices.below(len(payload) + 1)
            payloads[k] = payload[:at] + bytes([choices.below(256)]) + payload[at:]
        elif way == 5:
            del payloads[k]
        elif way == 6:
            payloads.insert(choices.below(len(payloads) + 1), payload)
        elif way == 7:
            other = choices.below(len(payloads))
            payloads[k], payloads[other] = payloads[other], payload
        else:
            made_up = [
                b"",
                b"Z",
                encode_type(20003, "pg_catalog", "int4"),
                encode_message(5, "p", b"", transactional=False),
            ]
            payloads.insert(choices.below(len(payloads) + 1), one_of(choices, made_up))
    lsns = (stream.lsns + [0] * len(payloads))[: len(payloads)]
    return Stream(payloads, lsns, {s for s in stream.sessions if s < len(payloads)})


# --- comparison ---------------------------------------------------------------------------------------------

META = (
    "change_type",
    "seq",
    "lsn",
    "txn",
    "xid",
    "subxid",
    "commit_lsn",
    "commit_timestamp",
    "key_only",
    "unchanged",
    "unrepresentable",
)


def plain(column: pa.Array) -> list[Any]:
    """Python values, with days and microseconds as ints, and floats in a form that compares their bits."""
    kind = column.type
    if pa.types.is_list(kind):
        inner = plain(column.flatten())
        out, at = [], 0
        for scalar in column:
            if not scalar.is_valid:
                out.append(None)
                continue
            size = len(scalar.values)
            out.append(inner[at : at + size])
            at += size
        return out
    if pa.types.is_struct(kind):
        fields = {field.name: plain(column.field(k)) for k, field in enumerate(kind)}
        return [
            {name: values[k] for name, values in fields.items()} if valid else None
            for k, valid in enumerate(column.is_valid().to_pylist())
        ]
    if pa.types.is_date(kind):
        return column.cast(pa.int32()).to_pylist()
    if pa.types.is_interval(kind):
        return [None if value is None else tuple(value) for value in column.to_pylist()]
    if pa.types.is_temporal(kind):
        return column.cast(pa.int64()).to_pylist()
    return [_exact(value) for value in column.to_pylist()]


def _exact(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, list):
        return [_exact(each) for each in value]
    if isinstance(value, dict):
        return {name: _exact(each) for name, each in value.items()}
    return value


def rows_of(out: Decoded) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for each in out.changes:
        each.batch.validate(full=True)
        relation, names = each.relation, each.batch.schema.names
        values = [plain(column) for column in each.batch.columns]
        for k in range(each.batch.num_rows):
            meta = {f"_{name}": values[at][k] for at, name in enumerate(META)}
            columns = {name: values[at][k] for at, name in enumerate(names) if at >= len(META)}
            rows.append(
                {
                    "relation": (relation.oid, relation.namespace, relation.name),
                    "version": relation.version,
                    "columns": columns,
                }
                | meta
            )
    return rows


def table_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    batch.validate(full=True)
    values = [plain(column) for column in batch.columns]
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*values, strict=True)]


def listed_outcomes(outcomes: TransactionOutcomes) -> tuple[list[Any], list[Any]]:
    """The transactions and the rolled-back subtransactions, in an order that does not depend on ranges."""
    names = ("txns", "at_seq", "commit_lsn", "commit_timestamp", "committed", "lost")
    columns = [getattr(outcomes, name).tolist() for name in names]
    return sorted(zip(*columns, strict=True)), sorted(outcomes.rolled_back)


def _row_key(row: dict[str, Any]) -> Any:
    return (row["_seq"], row["_change_type"] == "update_postimage", row["relation"], row["version"])


def summary(rows: list[Any], tables: dict[str, list[Any]]) -> dict[str, Any]:
    """All results that both decoders must agree on, in an order that does not depend on batches or calls."""
    rejects = [r for r in tables["rejects"] if r["format"] is not None]
    for reject in rejects:
        reject = {k: v for k, v in reject.items() if k != "reason"}
    exact = [{"columns": {k: _exact(v) for k, v in row["columns"].items()}} for row in rows]
    return {
        "rows": sorted(({**row, **e} for row, e in zip(rows, exact, strict=True)), key=_row_key),
        "transactions": tables["transactions"],
        "outcomes": tables["outcomes"],
        "truncates": sorted(tables["truncates"], key=lambda r: r["seq"]),
        "messages": sorted(tables["messages"], key=lambda r: r["seq"]),
        "cells": sorted(
            (
                r["seq"],
                r["byte_offset"],
                r["change_type"],
                r["relation"],
                r["column"],
                r["format"],
                r["type_oid"],
                r["raw"],
                r["lsn"],
            )
            for r in rejects
        ),
        "whole": sorted(
            (r["seq"], r["raw"], r["lsn"] or 0, r["relation"] or "")
            for r in tables["rejects"]
            if r["format"] is None
        ),
    }


TABLES = ("transactions", "outcomes", "truncates", "messages", "rejects")


def by_reference(stream: Stream, **options: Any) -> dict[str, Any] | None:
    """The result of the reference decoder, None if it raises. It ignores options that must not change the result."""
    known = {name: value for name, value in options.items() if name not in ("threads", "batch_rows")}
    try:
        out = reference.decode(
            stream.payloads, stream.lsns, sessions=stream.sessions, types=DESCRIBED, **known
        )
    except output.ReferenceError:
        return None
    return summary(out.rows, {name: getattr(out, name) for name in TABLES})


def _reopened(decoder: Decoder, how: int) -> Decoder:
    if how == 0:
        return decoder
    state = decoder.state
    again = pickle.loads(pickle.dumps(state)) if how == 1 else StreamState.from_json(state.to_json())
    assert again == state
    json.loads(state.to_json())
    return Decoder(decoder.options, again)


def by_fast(
    stream: Stream, cuts: Sequence[int] = (), reopen: int = 1, **options: Any
) -> dict[str, Any] | None:
    """The result of the fast decoder, None if it raises. Calls end at `cuts` and where sessions start."""
    decoder = Decoder(Options(**options), catalog=ENRICHED)
    rows: list[Any] = []
    tables: dict[str, list[Any]] = {name: [] for name in TABLES}
    ends = sorted({*cuts, *stream.sessions, len(stream.payloads)})
    begin = 0
    for end in ends:
        if begin in stream.sessions:
            decoder.start_session()
        before = decoder.state
        try:
            outs = _outs(decoder, stream.payloads[begin:end], stream.lsns[begin:end], reopen)
        except DecodeError as error:
            assert decoder.state == before, "the state moved though the call failed"
            check_error(stream, error)
            return None
        for out in outs:
            rows += rows_of(out)
            for name in TABLES:
                tables[name] += table_of(getattr(out, name))
        begin = end
        decoder = _reopened(decoder, reopen)
    return summary(rows, tables)


def _outs(decoder: Decoder, payloads: list[bytes], lsns: list[int], how: int) -> list[Decoded]:
    """The result of a call. With `how` 2, the pieces of `stream`: these streams are too short for several pieces."""
    if how != 2:
        return [decoder.decode(payloads, lsn=lsns)]
    columns = [pa.array(payloads, pa.binary()), pa.array(lsns, pa.int64())]
    return list(decoder.stream([pa.record_batch(columns, names=["payload", "lsn"])]))


def check_error(stream: Stream, error: DecodeError) -> None:
    assert error.seq is not None
    assert 0 <= error.seq < len(stream.payloads)
    assert error.byte_offset is not None
    assert 0 <= error.byte_offset <= len(stream.payloads[error.seq])
    assert str(error).startswith(f"message {error.seq}")


def check(stream: Stream, cuts: Sequence[int] = (), reopen: int = 1, **options: Any) -> None:
    """Asserts that both decoders give the same result, in one call and in several."""
    expected = by_reference(stream, **options)
    whole = by_fast(stream, (), 0, **options)
    assert_same(whole, expected)
    if cuts:
        assert_same(by_fast(stream, cuts, reopen, **options), expected)
        if options.get("transactions") == "committed":
            # All waiting changes go into spill files at once, and from there into the state.
            assert_same(by_fast(stream, cuts, reopen, **options, memory_limit=1), expected)


def assert_same(got: dict[str, Any] | None, expected: dict[str, Any] | None) -> None:
    if got is None or expected is None:
        assert (got is None) == (expected is None), "raised" if got is None else "did not raise"
        return
    for part, value in expected.items():
        assert got[part] == value, f"{part}: {_difference(got[part], value)}"


def _difference(got: list[Any], expected: list[Any]) -> str:
    for k, (a, b) in enumerate(zip(got, expected, strict=False)):
        if a != b:
            return f"at {k}: got {a!r}, expected {b!r}"
    return f"got {got[len(expected) :]!r} more, expected {expected[len(got) :]!r} more"


def check_tagged(stream: Stream, choices: Choices, **options: Any) -> None:
    """Asserts that a stream gives the same result when it is tagged, shuffled, split and decoded in any order."""
    if stream.sessions:
        return
    try:
        batch, state = tag(stream.payloads, StreamState(catalog=ENRICHED), lsn=stream.lsns)
        whole = Decoder(Options(**options), catalog=ENRICHED).decode(stream.payloads, lsn=stream.lsns)
    except DecodeError:
        return
    order = list(range(batch.num_rows))
    for k in range(len(order) - 1, 0, -1):
        other = choices.below(k + 1)
        order[k], order[other] = order[other], order[k]
    middle = choices.below(len(order) + 1)
    rows: list[Any] = []
    cells: list[Any] = []
    for part in (order[:middle], order[middle:]):
        some = batch.take(pa.array(part, pa.int64()))
        out = decode_tagged(some, state.catalog, Options(**options), outcomes=whole.outcomes)
        rows += rows_of(out)
        cells += table_of(out.rejects)
    assert sorted(map(repr, sorted(rows, key=_row_key))) == sorted(
        map(repr, sorted(rows_of(whole), key=_row_key))
    )
    assert sorted(map(repr, cells)) == sorted(map(repr, table_of(whole.rejects)))
