"""Helpers without knowledge of PostgreSQL: errors, arguments, what users see, and how work is interrupted."""
