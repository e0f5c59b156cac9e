"""The tasks for current tables: changes are divided by key, reduced, and merged into the files of the tables."""
