"""What the server's catalogs tell of tables and publications, and how two states differ."""
