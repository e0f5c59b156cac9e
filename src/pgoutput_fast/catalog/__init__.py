"""What is known of relations and types: relation versions, built-in and user-defined types, identifiers."""
