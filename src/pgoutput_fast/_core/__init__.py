"""The Cython ground floor: one stage per module, no Python objects between entry and assembly."""
