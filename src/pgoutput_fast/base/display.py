"""Objects for people: short texts and HTML tables, safe for any names in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice

__all__ = ["counted", "error_text", "escaped", "html_table", "nearest", "no_such_name", "some_of"]


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things in words.

    >>> counted(1, "message"), counted(1200, "message")
    ('1 message', '1,200 messages')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def escaped(text: str) -> str:
    r"""The text with unprintable characters as escapes such as \x1b, and a backslash as \\.

    >>> escaped("caf\u00e9 \x1b[31m"), escaped("a\u202eb\\")
    ('café \\x1b[31m', 'a\\u202eb\\\\')
    """
    return "".join(
        each if each.isprintable() and each != "\\" else each.encode("unicode_escape").decode()
        for each in text
    )


def error_text(problem: BaseException) -> str:
    """The text of an error and its notes as sentences; its type, if it has no text.

    >>> problem = OSError("no space")
    >>> problem.add_note("Free some.")
    >>> error_text(problem), error_text(KeyError("no table t")), error_text(ValueError())
    ('no space. Free some.', 'no table t', 'ValueError')
    """
    # str() of a KeyError puts its text in quotes.
    value = problem.args[0] if isinstance(problem, KeyError) and problem.args else problem
    text = str(value).strip() or type(problem).__name__
    for note in getattr(problem, "__notes__", []):
        text += f"{'' if text.endswith(('.', ':', '!', '?')) else '.'} {note}"
    return text


def some_of(names: Collection[str], most: int = 5) -> str:
    """The first names, and the number of the others.

    >>> some_of(["a", "b"]), some_of([]), some_of([str(each) for each in range(10_000)])
    ('a, b', 'none', '0, 1, 2, 3, 4 and 9,995 more')
    """
    listed = ", ".join(islice(names, most)) or "none"
    return listed if len(names) <= most else f"{listed} and {len(names) - most:,} more"


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The names most similar to an unknown one; at most three.

    >>> nearest("to_lak", ["other", "to_lake"]), nearest("x", ["other"])
    (['to_lake'], [])
    """
    from difflib import get_close_matches

    return get_close_matches(name, sorted(names))


def no_such_name(what: str, name: str, names: Collection[str]) -> str:
    """The error text for an unknown name, with the nearest existing names, or else some of them.

    >>> no_such_name("slot", "to_lak", ["other", "to_lake"]), no_such_name("slot", "x", [])
    ('there is no slot to_lak; the nearest: to_lake', 'there is no slot x, and no other one')
    >>> no_such_name("slot", "x", ["other", "to_lake"])
    'there is no slot x; there is other, to_lake'
    """
    near = nearest(name, names)
    if near:
        hint = f"; the nearest: {', '.join(map(escaped, near))}"
    else:
        hint = f"; there is {some_of(sorted(map(escaped, names)))}" if names else ", and no other one"
    return f"there is no {what} {escaped(name)}{hint}"


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]], left_out: int = 0) -> str:
    """A table for a notebook. Every text is escaped.

    Args:
        title: the line above the table.
        head: names of the columns.
        rows: the cells. Integers get thousands separators and are right-aligned.
        left_out: number of further rows that are not shown.

    >>> html_table("one <table>", ["name"], [["<b>"]]).partition("<tbody>")[2]
    '<tr><td style="text-align: left">&lt;b&gt;</td></tr></tbody></table></div>'
    """
    from html import escape  # takes a millisecond to import

    rows = list(rows)
    # Without a style, notebooks right-align all cells.
    styles = [
        "" if rows and isinstance(rows[0][n], int) else ' style="text-align: left"' for n in range(len(head))
    ]

    def cells(tag: str, values: Sequence[object]) -> str:
        texts = (f"{each:,}" if isinstance(each, int) else escaped(str(each)) for each in values)
        marked = (f"<{tag}{style}>{escape(text)}</{tag}>" for text, style in zip(texts, styles, strict=True))
        return f"<tr>{''.join(marked)}</tr>"

    body = "".join(cells("td", row) for row in rows)
    more = f"<p>and {left_out:,} more</p>" if left_out > 0 else ""
    return (
        f"<div><p>{escape(escaped(title))}</p><table><thead>{cells('th', head)}</thead>"
        f"<tbody>{body}</tbody></table>{more}</div>"
    )
