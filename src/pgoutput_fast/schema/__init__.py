"""From PostgreSQL's types to Arrow's: column types, tables' schemas, options, evolution of schemas."""
