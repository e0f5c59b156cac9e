"""Advice for refused reads of a table."""

from __future__ import annotations

__all__ = ["advice", "converted_here", "find_unsendable"]


def advice(message: str) -> str:
    """The advice, as a part of a sentence.

    Args:
        message: the server's error.

    >>> advice("ERROR:  permission denied for table orders")
    'Let its user read it (GRANT SELECT)'
    """
    # Localized servers also name the privilege and the function in English, but not the cause.
    if "row-level security" in message:
        return (
            "A policy of row level security would leave rows out. Give the user the attribute BYPASSRLS (ALTER ROLE "
            "... BYPASSRLS, as a superuser). Or connect as the owner of the table, if the table does not have "
            "FORCE ROW LEVEL SECURITY"
        )
    return "Let its user read it (GRANT SELECT)"


def find_unsendable(table: str) -> str:
    """How to find rows that the server cannot send as UTF-8, as a sentence without its full stop."""
    return (
        f"To find the rows of {table}, run SELECT convert_to(column, 'UTF8') for each column of text and parts of the "
        "rows: it fails for them"
    )


def converted_here(what: str) -> str:
    """The log text after the server could not send an object in UTF-8, as a sentence without its full stop."""
    return (
        f"the server cannot send {what} in UTF-8, because a character has no form in it. From now on it sends texts in "
        "the encoding of the database, and they are converted here, which is slower. A value with such a character has "
        "no Arrow form: it goes to the rejects"
    )
