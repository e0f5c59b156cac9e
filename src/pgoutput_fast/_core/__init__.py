"""The compiled core: one stage per module, and no Python objects between entry and assembly."""
