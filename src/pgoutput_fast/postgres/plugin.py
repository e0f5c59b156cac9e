"""The options of pgoutput by server version, and their defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pgoutput_fast.base.arguments import expect_list

__all__ = ["expect_publications", "plugin_options"]

# The first major version and the first protocol version that accept an option.
_SINCE = {
    "binary": (14, 1),
    "messages": (14, 1),
    "streaming": (14, 2),
    "two_phase": (15, 3),
    "origin": (16, 1),
}
_PROTOCOLS = ((16, 4), (15, 3), (14, 2), (10, 1))
_NAME_QUOTED = str.maketrans({'"': '""'})


def plugin_options(
    version: int,
    publications: Sequence[str],
    *,
    two_phase: bool = False,
    overrides: Mapping[str, str | None] | None = None,
) -> dict[str, str]:
    """Returns options for `START_REPLICATION` or the SQL functions.

    The defaults are the newest protocol, with streamed transactions and logical messages. Transactions are streamed in
    parallel mode, which adds the LSN and time of an abort. Values are text: a type without a binary form ends a binary
    stream, but not a text stream.

    Args:
        version: the server's version, such as 180001.
        publications: names of the publications, without SQL quotes.
        two_phase: whether the slot decodes prepared transactions when they are prepared.
        overrides: options that replace the defaults; None removes an option.

    Raises:
        ValueError: for an option that this version does not accept, and for an empty list of publications.
        TypeError: if `publications` is a text instead of a list.

    >>> plugin_options(180001, ["all"])
    {'proto_version': '4', 'publication_names': '"all"', 'streaming': 'parallel', 'messages': 'true'}
    >>> plugin_options(180001, ["all"], overrides={"binary": "true", "streaming": None, "messages": None})
    {'proto_version': '4', 'publication_names': '"all"', 'binary': 'true'}
    >>> plugin_options(100023, ["all", 'so "called"'])
    {'proto_version': '1', 'publication_names': '"all","so ""called\"""'}
    """
    expect_list("publications", publications)
    major = version // 10000
    if major < 10:
        raise ValueError(f"pgoutput came with PostgreSQL 10; this server is {version}")
    expect_publications(publications)
    overrides = dict(overrides or {})
    asked = _choose_protocol(major, overrides.pop("proto_version", None))
    protocol = int(asked)
    names = ",".join(f'"{name.translate(_NAME_QUOTED)}"' for name in publications)
    options = {"proto_version": asked, "publication_names": names}
    for name, value in (_defaults(major, protocol, two_phase=two_phase) | overrides).items():
        if value is not None:
            _check_option(name, major, protocol)
            options[name] = value
    return options


def expect_publications(publications: Sequence[str]) -> None:
    """Checks that this is a list of at least one publication name.

    Raises:
        ValueError: if the list is empty.
        TypeError: if `publications` is a text instead of a list.
    """
    expect_list("publications", publications)
    if not publications:
        raise ValueError("publications must name at least one publication")


def _choose_protocol(major: int, asked: str | None) -> str:
    """Returns the requested protocol version, or else the newest one that this server supports."""
    newest = next(protocol for since, protocol in _PROTOCOLS if major >= since)
    asked = asked or str(newest)
    if not asked.isdecimal() or not 1 <= int(asked) <= newest:
        raise ValueError(f"PostgreSQL {major} knows proto_version 1 to {newest}, not {asked!r}")
    return asked


def _defaults(major: int, protocol: int, *, two_phase: bool) -> dict[str, str | None]:
    defaults: dict[str, str | None] = {}
    if major >= 14 and protocol >= 2:
        defaults["streaming"] = "parallel" if protocol >= 4 else "on"
    if major >= 14:
        defaults["messages"] = "true"
    if two_phase:
        defaults["two_phase"] = "on"
    return defaults


def _check_option(name: str, major: int, protocol: int) -> None:
    if name not in _SINCE:
        raise ValueError(f"pgoutput has no option {name!r}; it has proto_version, {', '.join(_SINCE)}")
    since, least = _SINCE[name]
    if major < since:
        raise ValueError(f"option {name} came with PostgreSQL {since}; this server is {major}")
    if protocol < least:
        raise ValueError(f"option {name} needs proto_version {least}, not {protocol}")
