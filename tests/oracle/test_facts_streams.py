"""What real servers send of streamed and of prepared transactions, fact by fact."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast.demo.servers import Server
from support import pg
from support.oracle import (
    changes_of,
    in_apply_order,
    kinds,
    plain_changes,
    plain_records,
    runs,
    same_as_reference,
    same_as_reference_in_both_views,
)
from support.streaming import Streaming, streaming

_numbers = itertools.count()


@pytest.fixture
def table(database: pg.Database) -> str:
    name = f"streamed{next(_numbers)}"
    database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, t text)")
    return name


# --- the xid before a message -----------------------------------------------------------------------------


def test_same_bytes_mean_another_thing_outside_of_a_block(stream: Streaming, table: str) -> None:
    """The xid stands where the relation's oid would: only what came before tells which it is."""
    stream.run(0, "BEGIN")
    stream.fill(0, table, 0)
    stream.run(0, "COMMIT")
    payloads = stream.peek()
    at = kinds(payloads).index("I")
    (out,) = same_as_reference(payloads)
    xid = int.from_bytes(payloads[at][1][1:5], "big")
    assert changes_of([out], seq=at)[0]["_xid"] == xid
    described = next(data[:1] + data[5:] for _, data in payloads if data[:1] == b"R")
    begin, end = encode.encode_begin(100, 0, 7), encode.encode_commit(100, 108, 0)
    with pytest.raises(pgo.DecodeError, match="no Relation message described") as caught:
        pgo.decode([begin, described, payloads[at][1], end])
    assert caught.value.byte_offset == 1


def test_worker_that_starts_in_mid_stream_is_told_by_state_or_tags(stream: Streaming, table: str) -> None:
    stream.run(0, "BEGIN")
    stream.fill(0, table, 0)
    stream.run(0, "SAVEPOINT s")
    stream.fill(0, table, 10_000)
    stream.run(0, "COMMIT")
    payloads = [data for _, data in stream.peek()]
    whole = in_apply_order(plain_changes([pgo.decode(payloads)]))
    # By tags: each message on its own.
    tagged, state = pgo.tag(payloads)
    alone = [pgo.decode_tagged(tagged.slice(at, 1), state.catalog) for at in range(0, tagged.num_rows, 7)]
    wanted = [row for row in whole if row["_seq"] % 7 == 0]
    assert in_apply_order(plain_changes(alone)) == wanted
    # By state: from the middle of a block on.
    middle = next(
        at
        for at in range(len(payloads) // 2, len(payloads))
        if payloads[at - 1][:1] + payloads[at][:1] == b"II"
    )
    first = pgo.Decoder()
    first.decode(payloads[:middle])
    rest = pgo.Decoder(state=pgo.StreamState.from_json(first.state.to_json())).decode(payloads[middle:])
    assert in_apply_order(plain_changes([rest])) == [row for row in whole if row["_seq"] >= middle]
    # By nothing: everything up to the next boundary is set aside, and none of it guessed.
    out = pgo.decode(payloads[middle:], options=pgo.Options(on_error="quarantine"))
    assert out.changes == []
    assert out.rejects.num_rows > 10


# --- messages in a stream ---------------------------------------------------------------------------------


def test_message_of_a_rolled_back_savepoint_carries_the_top_xid(stream: Streaming, table: str) -> None:
    """Dropping by subtransaction does not remove it: it stays with its top transaction."""
    with stream.live() as live:
        stream.run(0, "BEGIN")
        stream.fill(0, table, 0, 400)
        stream.run(0, "SAVEPOINT s", f"INSERT INTO {table} VALUES (-1, 'rolled back')")
        stream.run(0, "SELECT pg_logical_emit_message(true, 'in', 'of the savepoint')")
        stream.fill(0, table, 10_000, 400)
        live.until("E")
        stream.run(0, "ROLLBACK TO s")
        live.until("A")
        stream.run(0, "COMMIT")
        live.until("c")
    (out,) = same_as_reference(live.payloads)
    (message,) = plain_records(out.messages)
    (top,) = {row["_xid"] for row in changes_of([out])}
    (undone,) = [row for row in changes_of([out]) if row["columns"]["id"] == -1]
    assert undone["_subxid"] != top
    assert (message["xid"], message["content"]) == (top, b"of the savepoint")
    raw = live.payloads[message["seq"]][1]
    assert int.from_bytes(raw[1:5], "big") == top
    (committed,) = same_as_reference(live.payloads, transactions="committed")
    assert plain_records(committed.messages) == [message]
    assert -1 not in [row["columns"]["id"] for row in changes_of([committed])]


def test_message_that_is_not_transactional_has_no_xid_and_changes_no_state(
    stream: Streaming, table: str
) -> None:
    """It comes between the segments of an open stream, which goes on behind it."""
    with stream.live() as live:
        stream.run(0, "BEGIN")
        stream.fill(0, table, 0, 400)
        live.until("E")
        stream.run(1, "SELECT pg_logical_emit_message(false, 'out', 'between')")
        live.until("M")
        stream.fill(0, table, 10_000, 400)
        live.until("E")
        stream.run(0, "COMMIT")
        live.until("c")
    tags = kinds(live.payloads)
    assert tags[tags.index("M") - 1] == "E"
    assert tags[tags.index("M") + 1] == "S"
    same_as_reference_in_both_views(live.payloads)
    with_message, without = pgo.Decoder(), pgo.Decoder()
    before = [data for _, data in live.payloads[: tags.index("M")]]
    with_message.decode(before)
    without.decode(before)
    message = with_message.decode([live.payloads[tags.index("M")][1]]).messages.to_pylist()[0]
    assert (message["txn"], message["xid"], message["transactional"]) == (None, None, False)
    assert message["lsn"] > 0
    states = [each.state.values or {} for each in (with_message, without)]
    # But for the ordinal, and for the LSNs of such messages: a new session sends them again.
    apart: dict[str, object] = {"next_seq": 0, "message_lsns": []}
    assert states[0] | apart == states[1] | apart


# --- aborts -----------------------------------------------------------------------------------------------


@pytest.fixture
def own_server(server: Server) -> Iterator[pg.Database]:
    """A server that a test may crash."""
    if server.version < 15:
        pytest.skip("transactions are streamed since 14, prepared ones sent since 15")
    with Server(server.installation) as own:
        yield pg.Database(own)


def slot_of_own(database: pg.Database) -> dict[str, str]:
    """Publication p and slot s, which are not to be closed; the options to peek with."""
    database.execute(
        "CREATE TABLE lasting (id int PRIMARY KEY, t text)", "CREATE PUBLICATION p FOR TABLE lasting"
    )
    database.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput', false, true)")
    return pg.all_options(database.version) | {"publication_names": "p"}


@pytest.mark.newest_server
def test_what_is_open_at_a_crash_is_aborted_without_a_position(own_server: pg.Database) -> None:
    """18 knows that it is aborted before it would send it."""
    options = slot_of_own(own_server)
    with own_server.session() as work, own_server.session() as other:
        open_one, committed_one = pg.Slot(work, "s", options), pg.Slot(other, "s", options)
        committed_one.execute("INSERT INTO lasting VALUES (1, 'before')")
        open_one.execute(
            "BEGIN", "INSERT INTO lasting SELECT n, repeat('x', 500) FROM generate_series(100, 900) AS n"
        )
        committed_one.execute("CREATE TABLE flushed ()")  # and with it all that lies before
        assert kinds(committed_one.peek())[-1] == "E"
        own_server.server.crash()
    own_server.server.start()
    with own_server.session() as connection:
        slot = pg.Slot(connection, "s", options)
        slot.execute("CHECKPOINT", "INSERT INTO lasting VALUES (2, 'after')")
        payloads = slot.peek()
    (out,) = same_as_reference(payloads)
    aborts = [row for row in plain_records(out.transactions) if row["kind"] == "stream_abort"]
    assert len(aborts) == (own_server.version < 18)
    for row in aborts:
        raw = payloads[row["seq"]][1]
        assert raw[9:17] == (bytes(8) if own_server.version >= 16 else b"")
        assert row["lsn"] is None
    (committed,) = same_as_reference(payloads, transactions="committed")
    assert [each["columns"]["id"] for each in changes_of([committed])] == [1, 2]


@pytest.mark.newest_server
def test_prepared_transaction_outlives_the_server(own_server: pg.Database) -> None:
    options = slot_of_own(own_server)
    arguments = ", ".join(pg.literal(word) for item in options.items() for word in item)
    with own_server.session() as connection:
        slot = pg.Slot(connection, "s", options)
        slot.execute("BEGIN", "INSERT INTO lasting VALUES (1, 'x')", "PREPARE TRANSACTION 'g'")
        first = slot.peek()
        slot.execute(f"SELECT count(*) FROM pg_logical_slot_get_binary_changes('s', NULL, NULL, {arguments})")
    decoder = pgo.Decoder(pgo.Options(transactions="committed"))
    assert decoder.decode([data for _, data in first]).changes == []
    own_server.server.stop()
    own_server.server.start()
    with own_server.session() as connection:
        slot = pg.Slot(connection, "s", options)
        slot.execute("COMMIT PREPARED 'g'")
        second = slot.peek()
    resumed = pgo.Decoder(decoder.options, pgo.StreamState.from_json(decoder.state.to_json()))
    resumed.start_session()
    out = resumed.decode([data for _, data in second])
    assert kinds(first) + kinds(second) == "bRIPK"
    assert out.table("public.lasting").column("id").to_pylist() == [1]


# --- what is described again ------------------------------------------------------------------------------


def test_relation_is_sent_again_after_a_subtransaction_abort(stream: Streaming, table: str) -> None:
    """The subtransaction might have been the one that altered it."""
    with stream.live() as live:
        stream.run(0, "BEGIN")
        stream.fill(0, table, 0, 400)
        live.until("E")
        stream.run(0, "SAVEPOINT s")
        stream.fill(0, table, 10_000, 400)
        live.until("E")
        stream.run(0, "ROLLBACK TO s")
        live.until("A")
        stream.fill(0, table, 20_000, 400)
        live.until("E")
        stream.run(0, "COMMIT")
        live.until("c")
    tags = kinds(live.payloads)
    behind = tags[tags.index("A") :]
    assert behind.index("R") < behind.index("I")
    assert len({data[5:] for _, data in live.payloads if data[:1] == b"R"}) == 1
    stream.equal(live.payloads, table)


def test_relation_known_from_a_stream_is_not_sent_again_after_it_commits(
    stream: Streaming, table: str
) -> None:
    """The commit makes what the stream said hold for all; a decoder that forgets it cannot go on."""
    with stream.live() as live:
        stream.run(0, "BEGIN")
        stream.fill(0, table, 0, 400)
        live.until("E")
        stream.run(0, "COMMIT")
        live.until("c")
        stream.run(1, f"INSERT INTO {table} VALUES (-1, 'after')")
        live.until("C")
    tags = kinds(live.payloads)
    assert tags[tags.index("c") :] == "cBIC"
    stream.equal(live.payloads, table)


def test_relation_altered_in_a_stream_may_be_sent_again_after_it_commits(
    stream: Streaming, table: str
) -> None:
    with stream.live() as live:
        stream.run(0, "BEGIN", f"ALTER TABLE {table} ADD COLUMN extra int")
        stream.fill(0, table, 0, 400)
        live.until("E")
        stream.fill(0, table, 10_000, 400)
        live.until("E")
        stream.run(0, "COMMIT")
        live.until("c")
        stream.run(1, f"INSERT INTO {table} VALUES (-1, 'after', 5)")
        live.until("C")
    stream.equal(live.payloads, table)
    (out,) = same_as_reference(live.payloads)
    assert len({each.relation.version for each in out.changes}) == 1
    assert len(out.changes[0].relation.columns) == 3


def test_types_are_sent_again_for_each_stream(stream: Streaming, database: pg.Database, table: str) -> None:
    database.execute(
        f"CREATE DOMAIN {table}_d AS int", f"ALTER TABLE {table} ADD COLUMN d {table}_d DEFAULT 7"
    )
    with stream.live() as live:
        for number in (0, 1):
            stream.run(number, "BEGIN")
            stream.fill(number, table, 10_000 * number, 400)
            live.until("E")
        for number in (1, 0):
            stream.run(number, "COMMIT")
            live.until("c")
    tags = kinds(live.payloads)
    assert tags.count("Y") >= 2
    assert {int.from_bytes(data[1:5], "big") for _, data in live.payloads if data[:1] == b"Y"} == {
        row["_xid"] for row in changes_of(same_as_reference(live.payloads))
    }
    stream.equal(live.payloads, table)


# --- prepared ---------------------------------------------------------------------------------------------


def test_gid_used_again_is_another_transaction(two_phase: Streaming, table: str) -> None:
    gid = f"again {table}"
    for number, end in enumerate(["ROLLBACK", "COMMIT", "ROLLBACK", "COMMIT"]):
        two_phase.run(
            0, "BEGIN", f"INSERT INTO {table} VALUES ({number}, '{end}')", f"PREPARE TRANSACTION '{gid}'"
        )
        two_phase.run(1, f"{end} PREPARED '{gid}'")
    payloads = two_phase.peek()
    (out,) = same_as_reference(payloads)
    rows = [row for row in plain_records(out.transactions) if row["gid"] == gid]
    assert [row["kind"] for row in rows if row["kind"].endswith("prepared")] == [
        "rollback_prepared", "commit_prepared", "rollback_prepared", "commit_prepared",
    ]  # fmt: skip
    assert len({row["txn"] for row in rows}) == 4
    prepares = {row["txn"]: row for row in rows if row["kind"] == "prepare"}
    for row in rows:
        if row["kind"] == "rollback_prepared":
            assert row["lsn"] == prepares[row["txn"]]["end_lsn"]
        assert row["prepare_timestamp"] == prepares[row["txn"]]["timestamp"]
    two_phase.equal(payloads, table)


def test_empty_transactions_that_are_streamed_or_prepared_are_sent(database: pg.Database, table: str) -> None:
    if database.version < 15:
        pytest.skip("since 15 empty plain transactions are skipped")
    other = f"{table}_other"
    database.execute(f"CREATE TABLE {other} (id int PRIMARY KEY, t text)")
    with streaming(database, two_phase=True, publication=f"FOR TABLE {table}") as stream:
        stream.run(0, f"INSERT INTO {other} VALUES (1, 'plain')")
        assert stream.peek() == []
        gid = f"empty {table}"
        stream.run(
            0,
            "BEGIN",
            f"INSERT INTO {other} VALUES (2, 'x')",
            f"PREPARE TRANSACTION '{gid}'",
            f"COMMIT PREPARED '{gid}'",
        )
        stream.run(0, "BEGIN")
        stream.fill(0, other, 100, 400)
        stream.run(0, "COMMIT")
        payloads = stream.peek()
    assert runs(kinds(payloads).replace("SE", "s")) == "bPKsc"
    same_as_reference_in_both_views(payloads)


# --- versions of the protocol -----------------------------------------------------------------------------


@pytest.mark.parametrize("binary", ["false", "true"])
def test_every_protocol_version_gives_the_servers_tables(
    database: pg.Database, table: str, binary: str
) -> None:
    """And so does every way of streaming that a version has."""
    if binary == "true" and database.version < 14:
        pytest.skip("binary is sent since 14")
    newest = int(pg.best_options(database.version)["proto_version"])
    ways = {1: ["off"], 2: ["off", "on"], 3: ["off", "on"], 4: ["off", "on", "parallel"]}
    with streaming(database, {"streaming": None, "messages": None}) as stream:
        stream.run(0, "BEGIN")
        stream.fill(0, table, 0, 300)
        stream.run(0, "SAVEPOINT a", f"UPDATE {table} SET t = 'a' WHERE id % 7 = 0")
        stream.run(1, f"INSERT INTO {table} VALUES (-1, 'between')")
        stream.run(0, "ROLLBACK TO a", f"DELETE FROM {table} WHERE id % 11 = 0", "COMMIT")
        stream.run(
            1,
            f"ALTER TABLE {table} ADD COLUMN n numeric(6,2)",
            f"UPDATE {table} SET n = id / 4.0 WHERE id < 20",
        )
        sent = {}
        for version in range(1, newest + 1):
            for way in ways[version]:
                options: dict[str, str | None] = {"proto_version": str(version)}
                if database.version >= 14:
                    options |= {"binary": binary, "streaming": way if way != "off" else None}
                payloads = stream.peek(options)
                stream.equal(payloads, table)
                sent[version, way] = kinds(payloads)
    assert all(("S" in tags) == (way != "off") for (_, way), tags in sent.items())
    assert len(sent) == sum(len(ways[version]) for version in range(1, newest + 1))
