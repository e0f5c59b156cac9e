"""Access to a PostgreSQL server: sessions, slots, publications, and the replication stream. Needs psycopg2."""
