"""The committed view: changes wait in a reorder buffer until their transaction commits."""
