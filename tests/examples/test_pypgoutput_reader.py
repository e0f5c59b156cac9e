"""docs/examples/pypgoutput_reader.py, on a real server."""

from __future__ import annotations

from pgoutput_fast.capture import create_slot
from support import pg
from support.capturing import freed
from support.examples import load, run, said, shop

CHANGES = (
    "INSERT INTO orders VALUES (1, 'new', 10.25)",
    "UPDATE orders SET note = 'paid'",
    "UPDATE orders SET id = 2",
    "DELETE FROM orders",
    "TRUNCATE orders",
)


def test_it_prints_what_the_page_says(servers: pg.Servers) -> None:
    with shop(servers, "reader") as database:
        create_slot(database.dsn, "reader")
        database.execute(*CHANGES)
        assert run("pypgoutput_reader.py", database.dsn, "reader", "shop") == said("pypgoutput_reader.py")
        assert run("pypgoutput_reader.py", database.dsn, "reader", "shop") == ""


def test_what_was_not_asked_for_comes_again(servers: pg.Servers) -> None:
    with shop(servers, "reader") as database:
        create_slot(database.dsn, "reader")
        database.execute(*CHANGES)
        make = load("pypgoutput_reader.py")["LogicalReplicationReader"]
        reader = make("shop", "reader", database.dsn, "shop")
        first = next(reader)
        reader.stop()
        freed(database.dsn, "reader")
        second = make("shop", "reader", database.dsn, "shop")
        again = next(second)
        second.stop()
        assert (first.op, first.lsn, first.transaction, first.after) == (
            again.op,
            again.lsn,
            again.transaction,
            again.after,
        )


def test_its_schemas_and_what_is_not_sent(servers: pg.Servers) -> None:
    with shop(servers, "reader") as database:
        create_slot(database.dsn, "reader")
        database.execute(
            "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
            "INSERT INTO orders VALUES (1, repeat('long', 2000))",
            "UPDATE orders SET amount = 2",
        )
        make = load("pypgoutput_reader.py")["LogicalReplicationReader"]
        _, update = make("shop", "reader", database.dsn, "shop", until_lsn="now")
    schema = update.table_schema
    assert (schema.schema_name, schema.table) == ("public", "orders")
    assert [(each.name, each.part_of_pkey, each.type_name) for each in schema.column_definitions] == [
        ("id", True, "int4"),
        ("note", False, "text"),
        ("amount", False, "numeric(10,2)"),
        ("placed", False, "timestamptz"),
    ]
    assert list(update.after) == ["id", "amount", "placed"]
    assert update.transaction.tx_id > 0
    assert update.transaction.begin_lsn > update.lsn
