"""Checks once, before a slot is read, for problems that may prevent it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

import psycopg2
import psycopg2.errors

from pgoutput_fast.capture.errors import CaptureError
from pgoutput_fast.postgres.check import check
from pgoutput_fast.postgres.findings import Finding
from pgoutput_fast.postgres.session import Server
from pgoutput_fast.postgres.slots import Slot

__all__ = ["Prerequisites", "expect_own_plugin", "explaining_refusals"]

_log = logging.getLogger("pgoutput_fast.capture")

_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "note": logging.INFO}

# The maximum number of tables named for the same finding.
_MOST_ALIKE = 5


class Prerequisites:
    """Requirements on a server, its publications and the user.

    Args:
        dsn: connection string of the database.
        publications: names of the publications.
        slot: the slot's name.
        through: as in `Capture`.
    """

    def __init__(
        self,
        dsn: str,
        publications: Sequence[str],
        slot: str,
        through: Literal["walsender", "sql"] = "walsender",
    ) -> None:
        self._dsn = dsn
        self._publications = publications
        self._slot = slot
        self._through = through
        self._findings: list[str] | None = None  # None before the check

    @property
    def findings(self) -> list[str]:
        """The errors found by the check. They may be the reason if the server refuses a connection."""
        return self._findings or []

    def check(self, *, is_first: bool = False) -> None:
        """Runs the check at the first call, and logs its findings. Later calls do nothing.

        Args:
            is_first: whether the slot has not been read yet: only then are notes logged.

        Raises:
            CaptureError: if nothing could be read, or changes would be missed silently.
            psycopg2.Error: if the server cannot be queried.
        """
        if self._findings is not None:
            return
        report = check(self._dsn, self._publications, self._slot, through=self._through)
        stops = [finding for finding in report.findings if finding.stops]
        if stops:
            raise CaptureError("the capture cannot begin: " + " ".join(map(_sentence, stops)))
        _log_findings([finding for finding in report.findings if is_first or finding.level != "note"])
        self._findings = [str(finding) for finding in report.findings if finding.level == "error"]


@contextmanager
def explaining_refusals(check: Callable[[], Sequence[Finding]]) -> Iterator[None]:
    """If the server refuses something or a connection, adds the errors of a check to the error as notes.

    Args:
        check: returns the findings. It is called after a refusal.
    """
    try:
        yield
    except psycopg2.Error as problem:
        # A connection that is refused has no code.
        if isinstance(problem, psycopg2.errors.InsufficientPrivilege) or "FATAL" in str(problem):
            with suppress(psycopg2.Error):
                for finding in check():
                    if finding.level == "error":
                        problem.add_note(str(finding))
        raise


def expect_own_plugin(slot: Slot, server: Server) -> None:
    """Checks that a slot decodes this database with pgoutput.

    Raises:
        CaptureError: if it does not.
    """
    if (slot.plugin, slot.database) != ("pgoutput", server.database):
        raise CaptureError(
            f"slot {slot.name} has plugin {slot.plugin} and decodes database {slot.database}: choose another name"
        )


def _log_findings(findings: list[Finding]) -> None:
    """Logs findings. Of findings that differ only in their subject, it logs the first ones and a count."""
    alike = Counter[tuple[str, str]]()
    for finding in findings:
        alike[finding.level, finding.problem] += 1
        if alike[finding.level, finding.problem] <= _MOST_ALIKE:
            _log.log(_LEVELS[finding.level], "%s", _sentence(finding))
    for (level, problem), count in alike.items():
        if count > _MOST_ALIKE:
            _log.log(_LEVELS[level], "%d more: %s. `check` names them all", count - _MOST_ALIKE, problem)


def _sentence(finding: Finding) -> str:
    return f"{finding.subject}: {finding.problem}. {finding.advice}."
