"""Keeps a command's passwords out of its error texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

__all__ = ["passwords_in", "without_passwords"]

_FORMS = (
    re.compile(r"password\s*=\s*'((?:[^'\\]|\\.)*)'", re.IGNORECASE),
    re.compile(r"password\s*=\s*([^\s'&]+)", re.IGNORECASE),
    re.compile(r"://[^:/?#@\s]*:([^\s]*)@"),
)
# Environment variables: one that is a password, and one that may contain it.
_PASSWORD, _DSN = "PGPASSWORD", "PGOUTPUT_FAST_DSN"
# A shorter text occurs in too many words.
_SHORTEST = 3


def passwords_in(arguments: Iterable[str], environment: Mapping[str, str]) -> set[str]:
    """The passwords in the arguments of a command, and in the environment.

    Args:
        arguments: as given.
        environment: variables of the process.

    >>> sorted(passwords_in(["--dsn", "host=a password='two words'"], {"PGPASSWORD": "secret"}))
    ['secret', 'two words']
    >>> sorted(passwords_in(["postgresql://me:se%2Fcret@db/shop"], {}))
    ['se%2Fcret', 'se/cret']
    """
    texts = [*arguments, environment.get(_DSN, "")]
    found = {match for text in texts for form in _FORMS for match in form.findall(text)}
    found |= {unquote(each) for each in found} | {re.sub(r"\\(.)", r"\1", each) for each in found}
    return {each for each in [*found, environment.get(_PASSWORD, "")] if len(each) >= _SHORTEST}


def without_passwords(text: str, passwords: Iterable[str]) -> str:
    """The text with passwords replaced by stars.

    >>> without_passwords("cannot use secret2 as secret", ["secret", "secret2"])
    'cannot use *** as ***'
    """
    for each in sorted(passwords, key=len, reverse=True):
        text = text.replace(each, "***")
    return text
