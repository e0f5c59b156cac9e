"""From PostgreSQL's types to Arrow's: column types, table schemas, options, schema evolution."""
