"""One PostgreSQL server: sessions, slots, publications, and its replication stream. Needs psycopg2."""
