"""Passwords that change, such as tokens of IAM: asked for at each connection."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg2

__all__ = ["Dsn", "PasswordCommand", "PasswordError"]

_COMMAND_SECONDS = 60.0


class PasswordError(psycopg2.OperationalError):  # type: ignore[misc]
    """There is no password for a connection now. A running capture or mirror tries again, as if the server was away."""


class Dsn(str):
    """A connection string whose password changes, such as a token of IAM. Give it wherever a dsn is expected.

    Args:
        dsn: libpq's connection string or URI, without a password.
        password: returns the password. It is called at each connection: several threads may call it at the same time. A
            mirror's capture has a process of its own, but the function is called in yours. The password is neither
            stored nor logged. If it raises an error, the connection fails with a `PasswordError`.

    Raises:
        TypeError: if `password` cannot be called.

    It is a `str`, but texts that are made from it have no password. Spark's executors connect in other processes, where
    the function cannot be called: there, use a password file or a service.

    >>> Dsn("host=db.example dbname=shop user=reader", lambda: "a token")
    'host=db.example dbname=shop user=reader'
    """

    _password: Callable[[], str]

    def __new__(cls, dsn: str, password: Callable[[], str]) -> Dsn:
        if not callable(password):
            raise TypeError(f"password must be a function that returns it, not a {type(password).__name__}")
        self = super().__new__(cls, dsn)
        self._password = password
        return self

    def __deepcopy__(self, memo: object) -> Dsn:
        return self

    def __reduce__(self) -> Any:
        return Dsn, (str(self), self._password)

    def with_text(self, dsn: str) -> Dsn:
        """Another connection string with the same function."""
        return Dsn(dsn, self._password)

    def ask(self) -> str:
        """Asks for the password.

        Raises:
            PasswordError: if the function raises an error, or returns no text.
        """
        try:
            password = self._password()
        except PasswordError:
            raise
        except Exception as problem:
            # Its message may have a part of the password.
            raise PasswordError(f"the function for the password raised {type(problem).__name__}") from problem
        if not isinstance(password, str) or not password:
            raise PasswordError(
                "the function for the password must return a text that is not empty, not "
                + ("an empty one" if password == "" else f"a {type(password).__name__}")
            )
        return password


@dataclass(frozen=True)
class PasswordCommand:
    """A command that prints the password. It is no shell's command line.

    Args:
        text: the command, with quotes as in a shell.

    Raises:
        ValueError: if it is empty, or a quote is not closed.

    >>> PasswordCommand("printf %s 'two words'")()
    'two words'
    """

    text: str = field(repr=False)  # an argument may be a secret

    def __post_init__(self) -> None:
        if not shlex.split(self.text):
            raise ValueError("the command for the password is empty")

    def __call__(self) -> str:
        """Runs the command. The last newline of its output is not part of the password.

        Raises:
            PasswordError: if it fails, takes longer than a minute, or prints anything but one line.
        """
        command = shlex.split(self.text)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=_COMMAND_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise PasswordError(
                f"the command for the password ({command[0]}) did not end within {_COMMAND_SECONDS:g} s"
            ) from None
        except OSError as problem:
            raise PasswordError(
                f"the command for the password ({command[0]}) cannot be run: {problem.strerror}"
            ) from None
        if done.returncode:
            raise PasswordError(
                f"the command for the password ({command[0]}) ended with status {done.returncode}"
            )
        printed = done.stdout.rstrip(b"\r\n")
        what = "nothing" if not printed else "more than one line" if b"\n" in printed else None
        try:
            password = printed.decode()
        except UnicodeDecodeError:
            what = "bytes that are not UTF-8"
        if what is not None:
            raise PasswordError(
                f"the command for the password ({command[0]}) must print the password alone: it printed {what}"
            )
        return password
