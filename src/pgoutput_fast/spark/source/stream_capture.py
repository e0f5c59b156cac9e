"""A streaming query that runs its own capture: options `dsn`, `slot`, `publication` and `capture`. Needs psycopg2."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.capture.process import CaptureProcess, Settings
from pgoutput_fast.catalog.identifiers import split_names
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.postgres.describe import describe_missing
from pgoutput_fast.postgres.session import current_lsn
from pgoutput_fast.segments.listing import catalog_of
from pgoutput_fast.segments.tail import SegmentsGoneError, SegmentStream

__all__ = ["OwnCapture", "known_with_server", "settings_of"]

_LIMITS = ("rows", "nbytes", "seconds")
# Attempts to read a list if segments in it are removed meanwhile.
_TRIES = 3


def settings_of(given: Mapping[str, str]) -> Settings:
    """Returns the capture's settings from the options.

    Args:
        given: options, in lower case.

    Raises:
        ValueError: for options that are missing or wrong.
    """
    missing = [name for name in ("slot", "publication") if not given.get(name, "").strip()]
    if missing:
        raise ValueError(
            f"with the option dsn the query captures changes: it needs the option {missing[0]}, too"
        )
    try:
        publications = tuple(split_names(given["publication"]))
    except ValueError as problem:
        raise ValueError(f"option publication: {problem}") from None
    try:
        more = parsed_json(given.get("capture", "{}"))
        limits = {name: more.pop(name) for name in _LIMITS if name in more}
        retry = more.pop("retry_seconds", None)
        settings = Settings(
            given["dsn"], given["slot"], publications, given["path"], limits, more, retry_seconds=retry
        )
        settings.capture()
    except (ValueError, AttributeError, TypeError) as problem:
        raise ValueError(f"option capture must be a JSON object of a capture's settings: {problem}") from None
    return settings


def known_with_server(given: Mapping[str, str], tables: Collection[str | int]) -> Catalog:
    """Returns the segments' catalog, the server's types, and its description of tables without changes so far.

    Args:
        given: options, in lower case.
        tables: qualified names or oids.

    Raises:
        KeyError: for a table that is neither known nor published.
        psycopg2.Error: if the server cannot be queried.
    """
    settings = settings_of(given)
    stream = SegmentStream(settings.directory)
    return describe_missing(settings.dsn, settings.publications, tables, _known(stream))


def _known(stream: SegmentStream) -> Catalog:
    """The catalog of all segments: the newest may lack versions of which only older ones have rows."""
    for _ in range(_TRIES - 1):
        # Retention may remove a segment at any time, and compact joins some.
        with suppress(SegmentsGoneError):
            return catalog_of(stream.open(stream.listed(fresh=True)))
    return catalog_of(stream.open(stream.listed(fresh=True)))


class OwnCapture:
    """The capture of a query, in a separate process.

    If another process captures into the directory, this capture waits until that process ends, and then takes over.

    Args:
        given: the query's options, in lower case.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._settings = settings_of(given)
        self._process: CaptureProcess | None = None

    @property
    def slot(self) -> str:
        """Name of the captured slot."""
        return self._settings.slot

    def keep(self) -> None:
        """Starts the capture if it does not run.

        Raises:
            CaptureError: if it cannot continue; the message says what to do.
        """
        if self._process is None:
            self._process = CaptureProcess(self._settings)
            self._process.start()
        if not self._process.check():  # something else stopped it
            self.stop()

    def catch_up(self) -> None:
        """Captures everything committed so far, then ends.

        Raises:
            CaptureError: if it cannot do so; the message says what to do.
            psycopg2.Error: if the server cannot be queried.
        """
        self.stop()
        self._process = CaptureProcess(replace(self._settings, until_lsn=current_lsn(self._settings.dsn)))
        self._process.start()
        try:
            self._process.wait()
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends the capture. Everything received is durable then."""
        if self._process is not None:
            self._process.stop()
            self._process = None
