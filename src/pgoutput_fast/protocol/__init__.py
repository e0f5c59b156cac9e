"""Basics of the protocol: message kinds, reasons for errors, LSNs."""
