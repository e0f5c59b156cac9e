"""Capture from a PostgreSQL server: slots, and what a capture needs. Needs psycopg2: `pgoutput_fast[capture]`."""

from pgoutput_fast.capture.check import Report, check
from pgoutput_fast.capture.findings import Finding
from pgoutput_fast.capture.metrics import Metrics
from pgoutput_fast.capture.plugin import plugin_options
from pgoutput_fast.capture.recorder import Limits
from pgoutput_fast.capture.retention import Consumers, Retention, retain
from pgoutput_fast.capture.run import Capture, CaptureBusyError, CaptureError
from pgoutput_fast.capture.session import PINS, Server
from pgoutput_fast.capture.slots import Slot, create_slot, drop_slot, find_slot, list_slots

__all__ = [
    "PINS",
    "Capture",
    "CaptureBusyError",
    "CaptureError",
    "Consumers",
    "Finding",
    "Limits",
    "Metrics",
    "Report",
    "Retention",
    "Server",
    "Slot",
    "check",
    "create_slot",
    "drop_slot",
    "find_slot",
    "list_slots",
    "plugin_options",
    "retain",
]
