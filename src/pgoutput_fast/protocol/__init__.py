"""Facts of the wire: message kinds, reasons for errors, LSNs."""
