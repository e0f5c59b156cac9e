"""Data that come by COPY."""
