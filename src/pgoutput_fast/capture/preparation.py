"""Checks the source, the slot and the positions before a connection, and determines where the connection begins."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pgoutput_fast.capture.confirmed_position import FILE
from pgoutput_fast.capture.errors import LOAD_TABLES, START_OVER, BehindError, CaptureError
from pgoutput_fast.capture.prerequisites import Prerequisites, expect_own_plugin
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.capture.watch import Watch
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.postgres.plugin import plugin_options
from pgoutput_fast.postgres.session import Server, read_position, read_server, session, with_identifier
from pgoutput_fast.postgres.slots import Slot, alter_slot, create_slot, is_physical, read_slot, was_read
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.segments.segment import Segment, Source

__all__ = ["Preparation", "SlotSettings", "StartPoint", "create_own_slot", "expect_usable"]

_log = logging.getLogger("pgoutput_fast.capture")


@dataclass(frozen=True)
class SlotSettings:
    """The slot of a capture, and how to read it. The attributes are the arguments of `Capture`."""

    dsn: str = field(repr=False)  # it may contain a password
    slot: str
    publications: tuple[str, ...]
    through: Literal["walsender", "sql"]
    two_phase: bool
    overrides: Mapping[str, str | None]
    adopt: bool = False
    failover: bool = False


@dataclass(frozen=True)
class StartPoint:
    """Where a connection begins.

    Attributes:
        source: the source of the capture.
        state: the state of the stream after the newest segment, None if there is no segment.
        end_lsn: the segments have everything committed up to this LSN.
    """

    source: Source
    state: StreamState | None
    end_lsn: int


def create_own_slot(settings: SlotSettings, server: Server) -> Slot:
    """Creates the slot of a capture, after checking for problems that would make the slot useless.

    Raises:
        CaptureError: if a physical slot has the name.
        ValueError: for plugin options that the server does not have.
        psycopg2.Error: if the server cannot be queried or refuses.
    """
    plugin_options(
        server.version, settings.publications, two_phase=settings.two_phase, overrides=settings.overrides
    )
    if is_physical(settings.dsn, settings.slot):
        raise CaptureError(
            f"slot {settings.slot} is a physical slot, perhaps that of a standby: choose another name"
        )
    return create_slot(settings.dsn, settings.slot, two_phase=settings.two_phase, failover=settings.failover)


class Preparation:
    """Runs the checks before the connections of one run.

    Args:
        settings: the slot.
        directory: the directory of the capture.
        watch: is given the confirmed position of the slot.
    """

    def __init__(self, settings: SlotSettings, directory: SegmentDirectory, watch: Watch) -> None:
        self._settings = settings
        self._directory = directory
        self._watch = watch
        self._prerequisites = Prerequisites(
            settings.dsn, settings.publications, settings.slot, settings.through
        )

    @property
    def findings(self) -> list[str]:
        """The errors found by the check of the prerequisites. They may prevent the capture."""
        return self._prerequisites.findings

    def find_start(self) -> StartPoint:
        """Returns where the next connection begins. Creates the slot if nothing was captured before.

        Raises:
            CaptureError: if the capture cannot continue after its segments; the message says what to do.
            ValueError: for plugin options that the server does not have.
            psycopg2.Error: if the server cannot be queried or refuses.
        """
        settings = self._settings
        with session(settings.dsn) as cursor:
            server = with_identifier(read_server(cursor), settings.dsn)
            # Another capture may write into a store meanwhile. What it has confirmed so far is in the directory below,
            # and what is there, the server has.
            slot = read_slot(cursor, settings.slot)
            newest, confirmed = self._directory.newest(), self._directory.confirmed
            server_lsn = read_position(cursor)
            is_first = newest is None and confirmed.lsn is None
            read_by_others = is_first and was_read(cursor, settings.slot)
        if is_first:
            self._directory.expect_no_mirror()
            self._prerequisites.check(is_first=True)
            if slot is None:
                slot = create_own_slot(settings, server)
                _log.info("created slot %s", settings.slot)
            else:
                self._expect_free(slot, read_by_others)
                # A first start and one after the loss of all segments look the same.
                _log.info(
                    "%s has no segments yet. The first one begins at %s, the position of slot %s: earlier commits "
                    "are not captured",
                    self._directory,
                    format_lsn(slot.confirmed_flush_lsn or 0),
                    settings.slot,
                )
        slot = expect_usable(slot, settings.slot, self._directory)
        expect_own_plugin(slot, server)
        if settings.failover and not slot.failover:
            alter_slot(settings.dsn, settings.slot, failover=True)
            _log.info("standbys may synchronize slot %s from now on", settings.slot)
        slot_lsn = slot.confirmed_flush_lsn or 0
        self._watch.set_confirmed(slot_lsn)
        durable_lsn = self._directory.durable_lsn_with(newest)
        if is_first:
            # While another client uses the slot, this capture has not begun: what that client confirms is not captured
            # here.
            if slot.active_pid is None:
                confirmed.save(slot_lsn, now=True)
        else:
            self._expect_own_position(server, slot_lsn, durable_lsn)
        self._expect_server_beyond(server, server_lsn, durable_lsn)
        source = self._source(server, slot)
        start = StartPoint(source, None, 0) if newest is None else self._continue_after(newest, source)
        self._prerequisites.check()
        return start

    def _expect_free(self, slot: Slot, was_read: bool) -> None:
        """Checks that a slot has no other reader, as far as the server knows, or that it is adopted.

        Raises:
            CaptureError: if it has one.
        """
        name = self._settings.slot
        if slot.active_pid is not None:
            user = f"process {slot.active_pid} of the server sends its changes to another client"
        elif was_read and not self._settings.adopt:
            user = "another client has read from it, or looked at its changes, before"
        else:
            return
        raise CaptureError(
            f"{self._directory} has no segments of slot {name}, and {user}. A slot has one reader, such as a mirror or "
            "another capture: what one confirms, the server sends to nobody else. Choose another name for the slot of "
            "this capture, which creates it. If nobody else needs the slot any more, end that client, and let the "
            f"capture adopt the slot where it is, at {format_lsn(slot.confirmed_flush_lsn or 0)} (adopt=True, "
            '--adopt, or "adopt": true in the option capture of a stream)'
        )

    def _expect_own_position(self, server: Server, slot_lsn: int, durable_lsn: int) -> None:
        """Checks that only this capture has confirmed positions of the slot."""
        # Before PostgreSQL 11, reading from a slot confirms its position, which may go one record further than
        # requested.
        if server.major >= 11 and slot_lsn > durable_lsn:
            raise CaptureError(
                f"slot {self._settings.slot} is confirmed up to {format_lsn(slot_lsn)}, but this capture confirmed it "
                f"only up to {format_lsn(durable_lsn)}: somebody else read from the slot, or dropped it and created it "
                f"again. The changes in between may be lost. L{LOAD_TABLES[1:]}, and capture into another directory. "
                f"(If you moved {self._directory} without its {FILE}, put that file back)"
            )

    def _expect_server_beyond(self, server: Server, server_lsn: int, durable_lsn: int) -> None:
        """Checks that the server's WAL reaches the end of the segments.

        Otherwise new commits would have positions that the segments already contain, and the stream would skip them.
        """
        if server_lsn >= durable_lsn:
            return
        problem = BehindError if server.in_recovery else CaptureError
        more = (
            " (This server is a standby: perhaps it only has to replay more WAL)"
            if server.in_recovery
            else ""
        )
        raise problem(
            f"the WAL of the server ends at {format_lsn(server_lsn)}, but {self._directory} has changes up to "
            f"{format_lsn(durable_lsn)}: somebody restored the server from an older copy, or a standby took over that "
            "lacked the last changes. The server lacks changes that the segments have. "
            f"{START_OVER}.{more}"
        )

    def _source(self, server: Server, slot: Slot) -> Source:
        settings = self._settings
        options = plugin_options(
            server.version, settings.publications, two_phase=slot.two_phase, overrides=settings.overrides
        )
        return Source(
            server.system_identifier,
            server.database,
            settings.slot,
            tuple(sorted(settings.publications)),
            options,
        )

    def _continue_after(self, newest: Segment, source: Source) -> StartPoint:
        if newest.source != source:
            raise CaptureError(
                f"{self._directory} has segments of another source: {'; '.join(newest.source.differences(source))}. "
                "Capture into another directory"
            )
        return StartPoint(source, newest.state, newest.end_lsn or 0)


def expect_usable(
    slot: Slot | None, name: str, directory: SegmentDirectory, durable_lsn: int | None = None
) -> Slot:
    """Returns the slot if a capture can continue from it after existing segments.

    Args:
        slot: the slot as described by the server, None if it does not exist.
        name: the slot's name.
        directory: the directory of the capture.
        durable_lsn: the LSN last confirmed by the capture; None to accept any position.

    Raises:
        CaptureError: if the slot is missing, invalidated, or confirmed beyond `durable_lsn`: changes after the segments
            are lost.
    """
    if slot is None:
        raise CaptureError(
            f"slot {name} is gone, but {directory} has segments of it: the changes since then are lost. {START_OVER}"
        )
    if slot.invalidated is not None:
        raise CaptureError(
            f"the server invalidated slot {name} ({slot.invalidated}): the changes since then are lost. "
            f"Drop the slot. {START_OVER}"
        )
    if (
        durable_lsn is not None
        and slot.confirmed_flush_lsn is not None
        and slot.confirmed_flush_lsn > durable_lsn
    ):
        raise CaptureError(
            f"somebody else has advanced slot {name} to {format_lsn(slot.confirmed_flush_lsn)}, but {directory} has "
            f"changes only up to {format_lsn(durable_lsn)}: the changes in between are lost. Find the other reader and "
            f"stop it. {START_OVER}"
        )
    return slot
