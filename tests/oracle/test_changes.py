"""What each server sends for each kind of change: replayed, it gives the server's own tables."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

import pytest

import pgoutput_fast as pgo
from pgoutput_fast.catalog.identifiers import parse_qualified_name, quote_identifier
from pgoutput_fast.decoding.result import Decoded
from support import pg
from support.forms import and_slow
from support.oracle import (
    Replica,
    changes_of,
    kinds,
    oid_of,
    plain_records,
    require,
    runs,
    same_as_reference,
    server_rows,
)
from support.workload import Workload

SEED = os.environ.get("PGOUTPUT_FAST_SEED", "20260402")
BIG = "x" * 5000  # stored out of line where the column's storage is EXTERNAL


def decoded(slot: pg.Slot, tables: Sequence[str] = (), **options: str) -> Decoded:
    """What the slot holds, decoded; replaying it gives `tables` as the server has them. The same from binary."""
    outs = []
    formats = [{}, {"binary": "true"}] if slot.connection.server_version >= 140000 else [{}]
    for each in formats:
        (out,) = same_as_reference(slot.peek(options | each))
        replica = Replica().apply([out])
        for table in tables:
            assert replica.rows(oid_of(slot, table)) == server_rows(slot, table), (table, each)
        outs.append(out)
    return outs[0]


def brief(out: Decoded, **wanted: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(row["_change_type"], row["columns"]) for row in changes_of([out], **wanted)]


# --- everything at once -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", and_slow([0], [1, 2]))
def test_replaying_random_work_gives_the_servers_tables(database: pg.Database, number: int) -> None:
    seed = f"{SEED} {number}"
    print(f"seed {seed} (PGOUTPUT_FAST_SEED)")
    work = Workload(f"random{number}", seed, database.version)
    with database.slot() as slot:
        slot.execute(work.schema)
        slot.execute(*work.transactions(40))
        out = decoded(slot, work.tables)
        assert out.rejects.num_rows == 0
        payloads = slot.peek()
    (committed,) = same_as_reference(payloads, transactions="committed")
    assert sum(each.batch.num_rows for each in committed.changes) == sum(
        each.batch.num_rows for each in out.changes
    )


# --- replica identities -----------------------------------------------------------------------------------


def test_update_without_old_tuple_means_the_identity_did_not_change(database: pg.Database) -> None:
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE same_key (id int PRIMARY KEY, t text)",
            "INSERT INTO same_key VALUES (1, 'a')",
            "UPDATE same_key SET t = 'b'",
            "DELETE FROM same_key",
            "INSERT INTO same_key VALUES (2, NULL)",
        )
        out = decoded(slot, ["same_key"])
    assert brief(out) == [
        ("insert", {"id": 1, "t": "a"}),
        ("update_postimage", {"id": 1, "t": "b"}),
        ("delete", {"id": 1, "t": None}),
        ("insert", {"id": 2, "t": None}),
    ]
    assert [row["_key_only"] for row in changes_of([out])] == [False, False, True, False]


def test_changed_key_sends_the_old_one_alone_as_k(database: pg.Database) -> None:
    """At full width, nulls where nothing was sent."""
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE other_key (t text, id int PRIMARY KEY)",
            "INSERT INTO other_key VALUES ('a', 1)",
            "UPDATE other_key SET id = 2",
        )
        out = decoded(slot, ["other_key"])
    rows = changes_of([out])[1:]
    assert [(row["_change_type"], row["_key_only"], row["columns"]) for row in rows] == [
        ("update_preimage", True, {"t": None, "id": 1}),
        ("update_postimage", False, {"t": "a", "id": 2}),
    ]
    assert rows[0]["_seq"] == rows[1]["_seq"]


def test_identity_full_sends_the_whole_old_row(database: pg.Database) -> None:
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE full_row (id int, t text)",
            "ALTER TABLE full_row REPLICA IDENTITY FULL",
            "INSERT INTO full_row VALUES (1, 'a'), (1, 'a'), (NULL, NULL)",
            "UPDATE full_row SET t = 'b' WHERE id = 1",
            "DELETE FROM full_row WHERE id IS NULL",
        )
        out = decoded(slot, ["full_row"])
    assert brief(out)[3:] == [
        ("update_preimage", {"id": 1, "t": "a"}), ("update_postimage", {"id": 1, "t": "b"}),
        ("update_preimage", {"id": 1, "t": "a"}), ("update_postimage", {"id": 1, "t": "b"}),
        ("delete", {"id": None, "t": None}),
    ]  # fmt: skip
    assert not any(row["_key_only"] for row in changes_of([out]))
    # Under FULL every column is part of the identity.
    assert [column.key for column in out.changes[0].relation.columns] == [True, True]
    assert out.changes[0].batch.schema.metadata[b"pg.replica_identity"] == b"f"


def test_identity_index_sends_the_indexs_columns(database: pg.Database) -> None:
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE indexed (id int PRIMARY KEY, a int NOT NULL, b int NOT NULL, UNIQUE (a, b))",
            "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_a_b_key",
            "INSERT INTO indexed VALUES (1, 2, 3)",
            "UPDATE indexed SET id = 9",
            "UPDATE indexed SET b = 4",
            "DELETE FROM indexed WHERE id = 9",
        )
        out = decoded(slot, ["indexed"])
    assert brief(out)[1:] == [
        ("update_postimage", {"id": 9, "a": 2, "b": 3}),
        ("update_preimage", {"id": None, "a": 2, "b": 3}), ("update_postimage", {"id": 9, "a": 2, "b": 4}),
        ("delete", {"id": None, "a": 2, "b": 4}),
    ]  # fmt: skip
    relation = out.changes[0].relation
    assert (relation.replica_identity, [column.key for column in relation.columns]) == (
        "i",
        [False, True, True],
    )


def test_identity_nothing_sends_inserts_only(database: pg.Database) -> None:
    """The server itself refuses to update what could not be found again."""
    database.execute(
        "CREATE TABLE unfindable (id int PRIMARY KEY)", "ALTER TABLE unfindable REPLICA IDENTITY NOTHING"
    )
    with database.slot() as slot:
        slot.execute("INSERT INTO unfindable VALUES (1), (2)")
        with pytest.raises(Exception, match="does not have a replica identity"):
            slot.execute("UPDATE unfindable SET id = 3")
        out = decoded(slot, ["unfindable"])
    assert out.changes[0].relation.replica_identity == "n"
    assert not any(column.key for column in out.changes[0].relation.columns)
    with database.slot("FOR TABLE unfindable WITH (publish = 'insert')") as slot:
        slot.execute("DELETE FROM unfindable", "INSERT INTO unfindable VALUES (5)")
        assert brief(decoded(slot)) == [("insert", {"id": 5})]


# --- values stored out of line ----------------------------------------------------------------------------


def test_unchanged_toast_is_listed_under_default_identity(database: pg.Database) -> None:
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE toasted (id int PRIMARY KEY, n int, a text, b text)",
            "ALTER TABLE toasted ALTER a SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL",
            f"INSERT INTO toasted VALUES (1, 1, '{BIG}', '{BIG}'), (2, 2, 'short', NULL)",
            "UPDATE toasted SET n = n + 1",
            "UPDATE toasted SET b = 'new', id = id + 10 WHERE id = 1",
        )
        out = decoded(slot, ["toasted"])
    rows = changes_of([out])[2:]
    assert [row["_unchanged"] for row in rows] == [["a", "b"], None, None, ["a"]]
    assert rows[0]["columns"] == {"id": 1, "n": 2, "a": None, "b": None}
    assert rows[3]["columns"] == {"id": 11, "n": 2, "a": None, "b": "new"}


def test_unchanged_toast_is_filled_from_the_old_row_under_full_identity(database: pg.Database) -> None:
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE toasted_full (id int, a text)",
            "ALTER TABLE toasted_full REPLICA IDENTITY FULL",
            "ALTER TABLE toasted_full ALTER a SET STORAGE EXTERNAL",
            f"INSERT INTO toasted_full VALUES (1, '{BIG}')",
            "UPDATE toasted_full SET id = 2",
        )
        out = decoded(slot, ["toasted_full"])
        raw = [data for _, data in slot.peek() if data[:1] == b"U"]
    assert raw[0].endswith(b"u")
    assert brief(out)[1:] == [
        ("update_preimage", {"id": 1, "a": BIG}), ("update_postimage", {"id": 2, "a": BIG}),
    ]  # fmt: skip
    assert [row["_unchanged"] for row in changes_of([out])] == [None] * 3


def test_unchanged_toast_in_the_key_is_filled_from_k(database: pg.Database) -> None:
    key = "k" * 2300
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE toasted_key (id int, k text, PRIMARY KEY (id, k))",
            "ALTER TABLE toasted_key ALTER k SET STORAGE EXTERNAL",
            f"INSERT INTO toasted_key VALUES (1, '{key}')",
            "UPDATE toasted_key SET id = 2",
            "DELETE FROM toasted_key",
        )
        out = decoded(slot, ["toasted_key"])
        (raw,) = [data for _, data in slot.peek() if data[:1] == b"U"]
    assert (raw[5:6], raw[-1:]) == (b"K", b"u")
    assert brief(out)[1:] == [
        ("update_preimage", {"id": 1, "k": key}), ("update_postimage", {"id": 2, "k": key}),
        ("delete", {"id": 2, "k": key}),
    ]  # fmt: skip
    assert [row["_unchanged"] for row in changes_of([out])] == [None] * 4


# --- truncate ---------------------------------------------------------------------------------------------


def test_truncate_is_one_message_with_its_flags_and_a_row_per_relation(database: pg.Database) -> None:
    require(database, 11, "Truncate is sent")
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE parent (id serial PRIMARY KEY)",
            "CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES parent)",
            "INSERT INTO parent VALUES (1)", "INSERT INTO child VALUES (1, 1)",
            "TRUNCATE parent CASCADE", "TRUNCATE child", "TRUNCATE child, parent RESTART IDENTITY",
            "INSERT INTO parent VALUES (7)", "TRUNCATE parent RESTART IDENTITY CASCADE",
            "INSERT INTO parent VALUES (8)",
        )  # fmt: skip
        out = decoded(slot, ["parent", "child"])
        parent, child = oid_of(slot, "parent"), oid_of(slot, "child")
    truncates = out.truncates.to_pylist()
    assert [(row["cascade"], row["restart_identity"]) for row in truncates] == [
        (True, False), (False, False), (False, True), (True, True),
    ]  # fmt: skip
    assert [sorted(row["relations"]) for row in truncates] == [
        [parent, child],
        [child],
        [parent, child],
        [parent, child],
    ]
    rows = changes_of([out], change_type="truncate")
    assert [(row["_seq"], row["relation"][0]) for row in rows] == [
        (row["seq"], oid) for row in truncates for oid in sorted(row["relations"])
    ]
    assert all(value is None for row in rows for value in row["columns"].values())


def test_truncate_is_not_sent_before_11(database: pg.Database) -> None:
    if database.version >= 11:
        pytest.skip("Truncate is sent since 11")
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE unnoticed (id int PRIMARY KEY)",
            "INSERT INTO unnoticed VALUES (1)",
            "TRUNCATE unnoticed",
        )
        out = decoded(slot)
    assert (out.truncates.num_rows, len(changes_of([out]))) == (0, 1)


# --- relations change -------------------------------------------------------------------------------------


def test_relation_sent_again_unchanged_is_no_new_version(database: pg.Database) -> None:
    again = "TRUNCATE quiet" if database.version >= 11 else "ANALYZE quiet"
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE quiet (id int PRIMARY KEY)", "INSERT INTO quiet VALUES (1)",
            "ANALYZE quiet", "INSERT INTO quiet VALUES (2)", again, "INSERT INTO quiet VALUES (3)",
            "VACUUM FULL quiet", "INSERT INTO quiet VALUES (4)",
            "ALTER TABLE quiet SET (fillfactor = 50)", "INSERT INTO quiet VALUES (5)",
        )  # fmt: skip
        out = decoded(slot, ["quiet"])
        payloads = [data for _, data in slot.peek()]
    described = [data for data in payloads if data[:1] == b"R"]
    assert len(described) > 2
    assert len(set(described)) == 1
    assert len(out.changes) == 1
    decoder = pgo.Decoder()
    decoder.decode(payloads)
    assert len(decoder.catalog) == 1


def test_columns_added_dropped_renamed_and_retyped_in_mid_stream_make_versions(database: pg.Database) -> None:
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE altered (id int PRIMARY KEY, a int, b text)", "INSERT INTO altered VALUES (1, 2, 'b')",
            "ALTER TABLE altered ADD COLUMN c text", "INSERT INTO altered VALUES (2, 2, 'b', 'c')",
            "ALTER TABLE altered DROP COLUMN a", "UPDATE altered SET c = 'd' WHERE id = 1",
            "ALTER TABLE altered RENAME COLUMN b TO e", "INSERT INTO altered VALUES (3, 'e', 'c')",
            "ALTER TABLE altered ALTER id TYPE int8", "INSERT INTO altered VALUES (5000000000, 'f', 'g')",
            "DELETE FROM altered WHERE id = 2",
        )  # fmt: skip
        out = decoded(slot, ["altered"])
        assert out.table(oid_of(slot, "altered")).schema.field("id").type == "int64"
    columns = [[column.name for column in each.relation.columns] for each in out.changes]
    assert columns == [
        ["id", "a", "b"],
        ["id", "a", "b", "c"],
        ["id", "b", "c"],
        ["id", "e", "c"],
        ["id", "e", "c"],
    ]
    table = out.table("public.altered")
    rows = table.select(["id", "e", "c", "a", "b"]).to_pylist()
    assert [row["_seq"] for row in table.select(["_seq"]).to_pylist()] == sorted(
        table.column("_seq").to_pylist()
    )
    assert rows[0] == {"id": 1, "e": None, "c": None, "a": 2, "b": "b"}
    assert rows[4] == {"id": 5_000_000_000, "e": "f", "c": "g", "a": None, "b": None}


def test_type_change_that_cannot_widen_is_an_error_of_table_that_names_both_versions(
    database: pg.Database,
) -> None:
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE retyped (id int PRIMARY KEY, v int)", "INSERT INTO retyped VALUES (1, 10)",
            "ALTER TABLE retyped ALTER v TYPE text", "UPDATE retyped SET v = v || '!'",
        )  # fmt: skip
        out = decoded(slot, ["retyped"])
    first, second = (each.relation for each in out.changes)
    with pytest.raises(ValueError, match="'v'") as caught:
        out.table("public.retyped")
    assert str(first.version) in str(caught.value)
    assert str(second.version) in str(caught.value)


def test_ddl_inside_a_transaction_takes_effect_where_it_stands(database: pg.Database) -> None:
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE inside (id int PRIMARY KEY)",
            "BEGIN", "INSERT INTO inside VALUES (1)", "ALTER TABLE inside ADD COLUMN t text",
            "INSERT INTO inside VALUES (2, 'two')", "SAVEPOINT s", "ALTER TABLE inside DROP COLUMN t",
            "INSERT INTO inside VALUES (3)", "ROLLBACK TO s", "INSERT INTO inside VALUES (4, 'four')", "COMMIT",
        )  # fmt: skip
        out = decoded(slot, ["inside"])
    assert brief(out) == [
        ("insert", {"id": 1}), ("insert", {"id": 2, "t": "two"}), ("insert", {"id": 4, "t": "four"}),
    ]  # fmt: skip


def test_renamed_table_keeps_its_oid_and_its_rows_the_name_they_had(database: pg.Database) -> None:
    with database.slot() as slot:
        slot.execute(
            "CREATE SCHEMA elsewhere", "CREATE TABLE before (id int PRIMARY KEY)", "INSERT INTO before VALUES (1)",
            "ALTER TABLE before RENAME TO after", "INSERT INTO after VALUES (2)",
            "ALTER TABLE after SET SCHEMA elsewhere", "INSERT INTO elsewhere.after VALUES (3)",
            "CREATE TABLE before (id int PRIMARY KEY)", "INSERT INTO before VALUES (4)",
        )  # fmt: skip
        out = decoded(slot, ["elsewhere.after", "before"])
        old = oid_of(slot, "elsewhere.after")
    assert out.table(old).column("id").to_pylist() == [1, 2, 3]
    assert out.table("public.before").column("id").to_pylist() == [1, 4]
    assert out.table("public.after").column("id").to_pylist() == [2]
    assert out.table("elsewhere.after").column("id").to_pylist() == [3]


# --- shapes and names -------------------------------------------------------------------------------------


def test_table_without_columns_has_rows(database: pg.Database) -> None:
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE void ()", "INSERT INTO void DEFAULT VALUES", "INSERT INTO void DEFAULT VALUES"
        )
        out = decoded(slot)
        assert slot.execute("SELECT count(*) FROM void") == [(2,)]
    assert brief(out) == [("insert", {})] * 2


@pytest.mark.parametrize(
    ("schema", "table", "column"),
    [
        ("public", "Order Lines", "the id"),
        ("Sch.ema", 'quo"ted', "a.b"),
        ("größe", "日本語", "naïve"),
        ("select", "user", "order"),
        ("public", "t$1", "$x"),
        ("s" * 63, "n" * 63, "c" * 63),
        ("public", "new\nline", "tab\tthere"),
    ],
)
def test_names_can_hold_anything(database: pg.Database, schema: str, table: str, column: str) -> None:
    name = f"{quoted(schema)}.{quoted(table)}"
    with database.slot() as slot:
        slot.execute(
            f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}",
            f"CREATE TABLE {name} ({quoted(column)} int PRIMARY KEY)",
            f"INSERT INTO {name} VALUES (1)",
        )
        out = decoded(slot, [name])
        (said,) = slot.execute(
            f"SELECT quote_ident({pg.literal(schema)}) || '.' || quote_ident({pg.literal(table)})"
        )[0]
    assert out.table(name).column(column).to_pylist() == [1]
    assert out.table(said).num_rows == 1
    relation = out.changes[0].relation
    assert (relation.namespace, relation.name, relation.qualified_name) == (schema, table, said)


def test_names_are_quoted_as_the_server_quotes_them(database: pg.Database) -> None:
    """Key words of newer versions are quoted for older ones too."""
    words = dict(database.execute("SELECT word, quote_ident(word) FROM pg_get_keywords()"))
    assert len(words) > 400
    newest = max(pg.installations())
    for word, said in words.items():
        if database.version == newest:
            assert quote_identifier(word) == said
        assert parse_qualified_name(f"{quote_identifier(word)}.{said}") == (word, word)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def test_generated_columns_are_absent_unless_published(database: pg.Database) -> None:
    """Stored ones since 12; only in a column list (15) or by the publication's option (18) are they sent."""
    require(database, 12, "generated columns exist")
    database.execute(
        "CREATE TABLE computed (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)"
    )
    work = ["INSERT INTO computed VALUES (1)", "UPDATE computed SET id = 4"]
    with database.slot("FOR TABLE computed") as slot:
        slot.execute(*work)
        out = decoded(slot)
        assert [names for _, names in brief(out)] == [{"id": 1}, {"id": 1}, {"id": 4}]
        assert [column.name for column in out.changes[0].relation.columns] == ["id"]
    if database.version >= 18:
        for publication in (
            "TABLE computed (id, twice)",
            "TABLE computed WITH (publish_generated_columns = stored)",
        ):
            with database.slot(f"FOR {publication}") as slot:
                slot.execute("TRUNCATE computed", *work)
                assert brief(decoded(slot, ["computed"]), change_type="insert") == [
                    ("insert", {"id": 1, "twice": 2})
                ]


def test_partitions_are_relations_of_their_own(database: pg.Database) -> None:
    """A row that moves between them is deleted here and inserted there."""
    if database.version < 11:
        pytest.skip("moving rows between partitions exists since 11")
    leaves = partitioned(database, "own")
    with database.slot(f"FOR TABLE {', '.join(leaves)}") as slot:
        slot.execute(
            "INSERT INTO own VALUES (1, 'a'), (101, 'b')", "UPDATE own SET id = 102 WHERE id = 1",
            "DELETE FROM own WHERE id = 101",
        )  # fmt: skip
        out = decoded(slot, leaves)
    assert {each.relation.name for each in out.changes} == set(leaves)


def test_partition_root_stands_for_its_leaves(database: pg.Database) -> None:
    require(database, 13, "publish_via_partition_root exists")
    leaves = partitioned(database, "via")
    with database.slot("FOR TABLE via WITH (publish_via_partition_root = true)") as slot:
        slot.execute(
            "INSERT INTO via VALUES (1, 'a'), (101, 'b')", "UPDATE via SET t = 'c'",
            "UPDATE via SET id = id + 101 WHERE id = 1", "UPDATE via SET id = id + 7 WHERE id = 101",
            "INSERT INTO via_2 (id, t) VALUES (150, 'leaf')", "DELETE FROM via WHERE id = 150", "TRUNCATE via",
            "INSERT INTO via VALUES (5, 'e')",
        )  # fmt: skip
        out = decoded(slot, ["via"])
        root = oid_of(slot, "via")
    assert {each.relation.oid for each in out.changes} == {root}
    assert out.truncates.column("relations").to_pylist() == [[root]]
    assert leaves


def partitioned(database: pg.Database, name: str) -> list[str]:
    database.execute(
        f"CREATE TABLE {name} (id int, t text, PRIMARY KEY (id, t)) PARTITION BY RANGE (id)",
        f"CREATE TABLE {name}_1 PARTITION OF {name} FOR VALUES FROM (0) TO (100)",
        # Attached with another order of columns and a dropped one: the wire has the root's order.
        f"CREATE TABLE {name}_2 (gone int, t text NOT NULL, id int NOT NULL, PRIMARY KEY (id, t))",
        f"ALTER TABLE {name}_2 DROP COLUMN gone",
        f"ALTER TABLE {name} ATTACH PARTITION {name}_2 FOR VALUES FROM (100) TO (200)",
    )
    return [f"{name}_1", f"{name}_2"]


def test_column_list_describes_only_its_columns(database: pg.Database) -> None:
    require(database, 15, "column lists exist")
    database.execute("CREATE TABLE listed (id int PRIMARY KEY, secret text, t text)")
    with database.slot("FOR TABLE listed (t, id)") as slot:
        slot.execute("INSERT INTO listed VALUES (1, 'secret', 'a')", "UPDATE listed SET secret = 's', id = 2")
        out = decoded(slot)
        said = server_rows(slot, "listed", "id, t")
        assert Replica().apply([out]).rows(oid_of(slot, "listed")) == said
    assert [column.name for column in out.changes[0].relation.columns] == ["id", "t"]


def test_row_filter_turns_updates_into_inserts_and_deletes(database: pg.Database) -> None:
    require(database, 15, "row filters exist")
    database.execute("CREATE TABLE filtered (id int PRIMARY KEY, t text)")
    with database.slot("FOR TABLE filtered WHERE (id > 10)") as slot:
        slot.execute(
            "INSERT INTO filtered VALUES (1, 'a'), (20, 'b')", "UPDATE filtered SET id = 11 WHERE id = 1",
            "UPDATE filtered SET id = 2 WHERE id = 20", "UPDATE filtered SET t = 'c'",
        )  # fmt: skip
        out = decoded(slot)
        assert Replica().apply([out]).rows(oid_of(slot, "filtered")) == server_rows(
            slot, "filtered WHERE id > 10"
        )
    assert [kind for kind, _ in brief(out)] == ["insert", "insert", "delete", "update_postimage"]


# --- transactions and positions ---------------------------------------------------------------------------


def test_copy_is_an_insert_per_row_in_order(database: pg.Database) -> None:
    def copy(connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.copy_expert(
                "COPY copied FROM STDIN", io.StringIO("".join(f"{n}\tt{n}\n" for n in range(2500)))
            )

    with database.slot() as slot:
        slot.execute("CREATE TABLE copied (id int PRIMARY KEY, t text)", copy)
        out = decoded(slot, ["copied"])
    table = out.table("public.copied")
    assert table.column("id").to_pylist() == list(range(2500))
    assert len(set(table.column("_seq").to_pylist())) == 2500
    # One WAL record holds several rows: their position is no identity.
    assert len(set(table.column("_lsn").to_pylist())) < 2500


def test_rolled_back_work_is_not_sent(database: pg.Database) -> None:
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE undone (id int PRIMARY KEY)",
            "BEGIN", "INSERT INTO undone VALUES (1)", "SAVEPOINT a", "INSERT INTO undone VALUES (2)", "SAVEPOINT b",
            "INSERT INTO undone VALUES (3)", "RELEASE b", "ROLLBACK TO a", "INSERT INTO undone VALUES (4)", "COMMIT",
            "BEGIN", "INSERT INTO undone VALUES (5)", "ROLLBACK",
        )  # fmt: skip
        out = decoded(slot, ["undone"])
    assert brief(out) == [("insert", {"id": 1}), ("insert", {"id": 4})]
    rows = changes_of([out])
    assert {row["_subxid"] for row in rows} == {None}  # outside of stream blocks nothing says which it was
    assert len({row["_txn"] for row in rows}) == 1


def test_begin_names_the_start_of_the_commit_record(database: pg.Database) -> None:
    """final_lsn of B is commit_lsn of C; end_lsn, which is to be acknowledged, lies behind."""
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE placed (id int PRIMARY KEY)",
            *(f"INSERT INTO placed VALUES ({n})" for n in range(5)),
        )
        payloads = slot.peek()
        (out,) = same_as_reference(payloads)
    rows = [
        row
        for row in plain_records(out.transactions)
        if row["txn"] in {row["_txn"] for row in changes_of([out])}
    ]
    assert len(rows) == 10
    for begin, commit in zip(rows[::2], rows[1::2], strict=True):
        assert (begin["kind"], commit["kind"]) == ("begin", "commit")
        assert (begin["lsn"], begin["timestamp"], begin["xid"]) == (
            commit["lsn"],
            commit["timestamp"],
            commit["xid"],
        )
        assert commit["end_lsn"] > commit["lsn"]
        assert payloads[commit["seq"]][0] == commit["end_lsn"]
        (row,) = changes_of([out], txn=begin["txn"])
        assert (row["_commit_lsn"], row["_commit_timestamp"]) == (commit["lsn"], commit["timestamp"])
        assert row["_lsn"] < row["_commit_lsn"]
        assert (row["_xid"], row["_txn"]) == (begin["xid"], begin["seq"])


def test_commit_time_is_the_servers(database: pg.Database) -> None:
    with database.slot() as slot:
        slot.execute("CREATE TABLE timed (id int PRIMARY KEY)")
        (before,) = slot.execute("SELECT clock_timestamp()")[0]
        slot.execute("INSERT INTO timed VALUES (1)")
        (after,) = slot.execute("SELECT clock_timestamp()")[0]
        (xid,) = slot.execute("SELECT xmin::text::int8 FROM timed")[0]
        row = decoded(slot).table("public.timed").to_pylist()[0]
    assert before <= row["_commit_timestamp"] <= after
    assert row["_xid"] == xid


def test_empty_transactions_are_sent_by_old_servers_only(database: pg.Database) -> None:
    database.execute("CREATE TABLE unpublished (id int)", "CREATE TABLE published (id int)")
    with database.slot("FOR TABLE published") as slot:
        slot.execute("INSERT INTO unpublished VALUES (1)")
        assert kinds(slot.peek()) == ("" if database.version >= 15 else "BC")
        slot.execute("INSERT INTO published VALUES (2)")
        assert brief(decoded(slot)) == [("insert", {"id": 2})]


def test_type_message_comes_before_the_relation_that_uses_it(database: pg.Database) -> None:
    database.execute(
        "CREATE TYPE colour AS ENUM ('red')", "CREATE DOMAIN percent AS int", "CREATE SCHEMA types",
        "CREATE TYPE types.thing AS (a int)", "CREATE TABLE typed (c colour, cs colour[], p percent, t types.thing)",
    )  # fmt: skip
    with database.slot("FOR TABLE typed") as slot:
        slot.execute("INSERT INTO typed VALUES ('red', '{red}', 5, '(1)')")
        assert runs(kinds(slot.peek())) == "BYRIC"
        out = decoded(slot)
    columns = [(c.type_namespace, c.type_name) for c in out.changes[0].relation.columns]
    assert columns == [
        ("public", "colour"),
        ("public", "_colour"),
        ("pg_catalog", "int4"),
        ("types", "thing"),
    ]
    assert brief(out) == [("insert", {"c": "red", "cs": ["red"], "p": 5, "t": "(1)"})]


# --- origins and messages ---------------------------------------------------------------------------------


def test_origin_goes_with_the_commit_of_its_transaction(database: pg.Database) -> None:
    name = f"origin of {database.name}"
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE replicated (id int PRIMARY KEY)",
            "INSERT INTO replicated VALUES (1)",
            f"SELECT pg_replication_origin_create('{name}')",
            f"SELECT pg_replication_origin_session_setup('{name}')",
            "BEGIN", "SELECT pg_replication_origin_xact_setup('0/ABCD', '2020-01-01 00:00:00+00')",
            "INSERT INTO replicated VALUES (2)", "COMMIT",
            "SELECT pg_replication_origin_session_reset()", "INSERT INTO replicated VALUES (3)",
        )  # fmt: skip
        out = decoded(slot, ["replicated"])
        assert "O" in kinds(slot.peek())
        slot.execute(f"SELECT pg_replication_origin_drop('{name}')")
    commits = [
        row for row in plain_records(out.transactions) if row["txn"] in {r["_txn"] for r in changes_of([out])}
    ]
    assert [(row["kind"], row["origin"], row["origin_lsn"]) for row in commits] == [
        ("begin", None, None), ("commit", None, None), ("begin", None, None), ("commit", name, 0xABCD),
        ("begin", None, None), ("commit", None, None),
    ]  # fmt: skip
    assert commits[3]["timestamp"] == 1_577_836_800_000_000


def test_foreign_origin_is_left_out_on_demand(database: pg.Database) -> None:
    require(database, 16, "the option origin exists")
    name = f"foreign to {database.name}"
    with database.slot() as slot:
        slot.execute(
            "CREATE TABLE mine (id int PRIMARY KEY)", f"SELECT pg_replication_origin_create('{name}')",
            f"SELECT pg_replication_origin_session_setup('{name}')", "INSERT INTO mine VALUES (1)",
            "SELECT pg_replication_origin_session_reset()", "INSERT INTO mine VALUES (2)",
        )  # fmt: skip
        assert brief(decoded(slot, origin="none")) == [("insert", {"id": 2})]
        assert len(brief(decoded(slot, origin="any"))) == 2
        slot.execute(f"SELECT pg_replication_origin_drop('{name}')")


def test_logical_messages_in_and_outside_of_transactions(database: pg.Database) -> None:
    require(database, 14, "the option messages exists")
    with database.slot(options={"messages": "true"}) as slot:
        slot.execute(
            "CREATE TABLE talking (id int PRIMARY KEY)",
            "BEGIN", "INSERT INTO talking VALUES (1)",
            "SELECT pg_logical_emit_message(true, 'in', 'kept')",
            "SELECT pg_logical_emit_message(false, 'out', '\\x00ff'::bytea)",
            "SAVEPOINT s", "SELECT pg_logical_emit_message(true, 'in', 'rolled back')", "ROLLBACK TO s", "COMMIT",
            "BEGIN", "SELECT pg_logical_emit_message(true, 'in', 'lost')",
            "SELECT pg_logical_emit_message(false, 'out', 'stays')", "ROLLBACK",
            "SELECT pg_logical_emit_message(true, 'é ü', '')",
        )  # fmt: skip
        out = decoded(slot, ["talking"])
        (committed,) = same_as_reference(slot.peek(), transactions="committed")
    messages = plain_records(out.messages)
    (txn,) = {row["_txn"] for row in changes_of([out])}
    inside = [(row["prefix"], row["content"]) for row in messages if row["txn"] == txn]
    assert inside == [("in", b"kept")]
    outside = [(row["prefix"], row["content"]) for row in messages if not row["transactional"]]
    assert outside == [("out", b"\0\xff"), ("out", b"stays")]
    assert all((row["txn"], row["xid"]) == (None, None) for row in messages if not row["transactional"])
    assert (messages[-1]["prefix"], messages[-1]["content"]) == ("é ü", b"")
    assert sorted(committed.messages.column("seq").to_pylist()) == sorted(
        out.messages.column("seq").to_pylist()
    )
    assert all(row["lsn"] > 0 for row in messages)
