"""Messages of one relation version as rows of a batch."""
