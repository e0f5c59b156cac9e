"""Peeks at a live slot. Nothing is consumed: the next reader of the slot gets the same messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pgoutput_fast.capture.prerequisites import expect_own_plugin, explaining_refusals
from pgoutput_fast.capture.sql_source import SqlSource
from pgoutput_fast.cli.payloads import Batch, InputError
from pgoutput_fast.postgres.check import check
from pgoutput_fast.postgres.plugin import expect_publications, plugin_options
from pgoutput_fast.postgres.session import read_server, session
from pgoutput_fast.postgres.slots import check_name, read_slots

__all__ = ["SlotPayloads"]

_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class SlotPayloads:
    """The messages that a slot would send now.

    Args:
        dsn: connection string of the slot's database.
        slot: its name.
        publications: the publications whose changes to show.
        most: the server stops after the transaction that reaches this number of messages; None for no limit.
        follow: whether to peek again for more messages. Each peek begins at the slot's position, so it repeats earlier
            messages.
    """

    dsn: str
    slot: str
    publications: Sequence[str]
    most: int | None = None
    follow: bool = False
    size: int | None = None

    @property
    def name(self) -> str:
        """Its name in error texts."""
        return f"slot {self.slot}"

    def batches(self) -> Iterator[Batch]:
        """The messages.

        Raises:
            InputError: if the slot or a publication does not exist.
            CaptureError: if the slot has another plugin, or decodes another database.
            psycopg2.Error: if the server cannot be reached or refuses.
        """
        check_name(self.slot)
        expect_publications(self.publications)
        with session(self.dsn) as cursor:
            server, slots = read_server(cursor), read_slots(cursor)
        slot = next((each for each in slots if each.name == self.slot), None)
        if slot is None:
            # A temporary slot is of another session, such as that of another peek.
            names = ", ".join(each.name for each in slots if not each.temporary) or "none"
            raise InputError(f"the server has no slot {self.slot}; it has {names}")
        expect_own_plugin(slot, server)
        findings = check(self.dsn, self.publications, self.slot, through="sql").findings
        for finding in findings:
            if finding.stops:
                raise InputError(f"{finding.subject}: {finding.problem}. {finding.advice}")
        options = plugin_options(server.version, self.publications, two_phase=slot.two_phase)
        with explaining_refusals(lambda: findings):
            yield from self._peeks(options)

    def _peeks(self, options: Mapping[str, str]) -> Iterator[Batch]:
        """The messages of each peek."""
        seen = -1
        while True:
            # The slot is free between two peeks, so its own reader can continue.
            with SqlSource(self.dsn, self.slot, options, as_copy=True) as source:
                end = source.position()
                first = True
                for received in source.peek(end, self.most) if end > seen else ():
                    yield Batch(received.payloads, received.lsns, starts_session=first)
                    first = False
            if not self.follow:
                return
            seen = end
            time.sleep(_PAUSE_SECONDS)
