"""The demo's workload: a small shop. Its tables cover the features of a change stream."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

__all__ = ["PUBLICATION", "SLOT", "TABLES", "prepare", "run", "run_on"]

SLOT = "shop_slot"
PUBLICATION = "shop"

SCHEMA = """
CREATE TYPE public.order_status AS ENUM ('new', 'paid', 'sent', 'returned');
CREATE DOMAIN public.price AS numeric(12,2) CHECK (VALUE >= 0);
CREATE TABLE public.customers (
    id int PRIMARY KEY, name text NOT NULL, email varchar(80), born date, vip bool DEFAULT false,
    phones text[], joined timestamptz DEFAULT now());
CREATE TABLE public.products (
    sku uuid PRIMARY KEY, title text, price numeric(10,2), weight float8, attributes jsonb, picture bytea,
    description text);
CREATE TABLE public.orders (
    id bigint PRIMARY KEY, customer int, status public.order_status, total public.price, rating numeric,
    placed timestamp, slot time, tags int[]);
CREATE TABLE public.order_lines (
    order_id bigint, line smallint, sku uuid, quantity int, price real, PRIMARY KEY (order_id, line));
CREATE TABLE public.visits (id bigint PRIMARY KEY, customer int, at timestamptz, page text, seconds real);
CREATE TABLE public."Audit Log" (at timestamptz, what text, detail json);
ALTER TABLE public."Audit Log" REPLICA IDENTITY FULL;
ALTER TABLE public.products ALTER description SET STORAGE EXTERNAL;
"""

# The tables, with the columns that identify their rows.
TABLES: dict[str, tuple[str, ...]] = {
    "public.customers": ("id",),
    "public.products": ("sku",),
    "public.orders": ("id",),
    "public.order_lines": ("order_id", "line"),
    "public.visits": ("id",),
    'public."Audit Log"': ("at", "what"),
}


# Visits of the shop per order. They make the stream long enough to measure a rate.
VISITS = 10

# These statements use operators and functions without a schema. This path prevents calls of objects planted in another
# schema.
_PATH = "SET search_path = pg_catalog"


def prepare(connection: Any) -> None:
    """Creates the tables and the publication."""
    with connection.cursor() as cursor:
        cursor.execute(_PATH)
        cursor.execute(SCHEMA)
        cursor.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
        connection.commit()


def run(connection: Any, orders: int, seed: int = 20_26) -> Iterator[int]:
    """Runs the shop until `orders` orders exist. Yields the number of added orders after each transaction.

    The work has inserts, updates (of keys, of TOASTed rows and others), deletes, a truncate, and halfway an ALTER TABLE
    with traffic before and after it.
    """
    chance = random.Random(seed)
    with connection.cursor() as cursor:
        cursor.execute(_PATH)
        for step in _steps(cursor, chance, orders):
            connection.commit()
            yield step


def run_on(connection: Any, orders: int) -> Iterator[None]:
    """Continues after `run`, with small transactions and without an end. Yields after each of them.

    Args:
        connection: connection to the server.
        orders: number of orders in the shop.
    """
    chance = random.Random(20_26)
    customers, first = max(orders // 20, 10), orders + 1
    with connection.cursor() as cursor:
        cursor.execute(_PATH)
        while True:
            _place_orders(cursor, chance, customers, first, first + 4)
            cursor.execute(
                "UPDATE public.orders SET id = -id, status = 'sent' WHERE id = %s",
                (first + chance.randrange(5),),
            )
            cursor.execute("DELETE FROM public.visits WHERE id = %s", (chance.randrange(1, first * VISITS),))
            connection.commit()
            first += 5
            yield


def _steps(cursor: Any, chance: random.Random, orders: int) -> Iterator[int]:
    customers = max(orders // 20, 10)
    _fill_shop(cursor, customers)
    yield 0
    placed, batch = 0, min(500, max(orders // 8, 1))
    while placed < orders:
        count = min(batch, orders - placed)
        _place_orders(cursor, chance, customers, placed + 1, placed + count)
        placed += count
        if placed - count < orders // 2 <= placed:
            _alter_tables(cursor)
        yield count
    cursor.execute("UPDATE public.orders SET id = -id WHERE id % 100 = 0")  # the key changes
    cursor.execute("DELETE FROM public.customers WHERE id % 50 = 0")
    cursor.execute("UPDATE public.\"Audit Log\" SET what = upper(what) WHERE what LIKE '%1'")
    yield 0


def _fill_shop(cursor: Any, customers: int) -> None:
    cursor.execute(
        "INSERT INTO public.customers SELECT i, 'Customer ' || i, 'c' || i || '@example.org',"
        " date '1950-01-01' + i * 7 %% 20000,"
        " i %% 10 = 0, CASE WHEN i %% 3 = 0 THEN NULL ELSE ARRAY['+49 30 ' || i, NULL, '\"mobile\", ' || i] END,"
        " timestamptz '2024-01-01 00:00+00' + i * interval '1 hour 3 seconds 17 microseconds'"
        " FROM generate_series(1, %s) i",
        (customers,),
    )
    cursor.execute(
        "INSERT INTO public.products"
        " SELECT md5('sku' || i)::uuid, 'Product ' || i, (i * 7919 % 100000) / 100.0, sqrt(i),"
        " jsonb_build_object('colour', (ARRAY['red','green','blue'])[1 + i % 3], 'size', i % 40),"
        " decode(md5('p' || i), 'hex'), repeat('long text ' || i || ' ', 400)"
        " FROM generate_series(1, 200) i"
    )


def _place_orders(cursor: Any, chance: random.Random, customers: int, first: int, last: int) -> None:
    cursor.execute(
        "INSERT INTO public.orders (id, customer, status, total, rating, placed, slot, tags)"
        " SELECT i, 1 + i %% %s, 'new', (i * 31 %% 500000) / 100.0,"
        " CASE WHEN i %% 5 = 0 THEN NULL ELSE i / 7.0 END,"
        " timestamp '2025-01-01' + i * interval '61.000001 seconds', time '08:00' + i * interval '1 second',"
        " ARRAY[i, i * 2, -i] FROM generate_series(%s, %s) i",
        (customers, first, last),
    )
    cursor.execute(
        "INSERT INTO public.order_lines SELECT i, l, md5('sku' || (1 + (i * l) %% 200))::uuid, 1 + i %% 9,"
        " (i %% 1000) / 8.0"
        " FROM generate_series(%s, %s) i, generate_series(1, 3) l",
        (first, last),
    )
    cursor.execute(
        "INSERT INTO public.visits SELECT i, 1 + i %% %s, timestamptz '2025-01-01 00:00+00' + i * interval '7 seconds',"
        " '/products/' || i %% 200, CASE WHEN i %% 4 > 0 THEN (i %% 900) / 8.0 END FROM generate_series(%s, %s) i",
        (customers, first * VISITS, last * VISITS + VISITS - 1),
    )
    cursor.execute(
        "UPDATE public.orders SET status = 'paid', total = total + 1 WHERE id %% 2 = 0 AND id BETWEEN %s AND %s",
        (first, last),
    )
    cursor.execute(
        "UPDATE public.order_lines SET quantity = quantity + 1"
        " WHERE order_id %% 7 = 0 AND order_id BETWEEN %s AND %s",
        (first, last),
    )
    cursor.execute(
        "DELETE FROM public.order_lines WHERE line = 3 AND order_id %% 4 = 0 AND order_id BETWEEN %s AND %s",
        (first, last),
    )
    # The long description is TOASTed and not sent again: the rebuilt row must keep it.
    cursor.execute(
        "UPDATE public.products SET price = price + 0.01 WHERE md5(sku::text) < %s",
        (f"{chance.randrange(256):02x}",),
    )
    cursor.execute(
        "INSERT INTO public.\"Audit Log\" SELECT clock_timestamp(), %s || i, json_build_object('n', i)"
        " FROM generate_series(1, 5) i",
        (f"batch {first} ",),
    )


def _alter_tables(cursor: Any) -> None:
    # A rolled back savepoint leaves no trace. Then the schema changes in mid-stream.
    cursor.execute("SAVEPOINT s; DELETE FROM public.orders; ROLLBACK TO SAVEPOINT s")
    cursor.execute(
        "ALTER TABLE public.orders ADD COLUMN courier text; ALTER TABLE public.customers ALTER id TYPE bigint"
    )
    cursor.execute("UPDATE public.orders SET courier = 'bike ' || id WHERE id % 3 = 0")
    cursor.execute('TRUNCATE public."Audit Log"')
