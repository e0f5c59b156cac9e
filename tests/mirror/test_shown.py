"""What a mirror shows of itself in a notebook and in a log: what identifies it, and no secret."""

from __future__ import annotations

from pathlib import Path

from pgoutput_fast.mirror import Mirror


def test_what_a_mirror_shows(tmp_path: Path) -> None:
    dsn = "postgresql://me:s3cret@db.example:5433/shop"
    mirror = Mirror(dsn, "to_lake", ["shop", "a<b"], tmp_path / "lake", format="duckdb")
    facts = ["slot to_lake", "of shop at db.example:5433", "publications a<b, shop", f"to {tmp_path}/lake"]
    assert repr(mirror) == f"<Mirror: {', '.join(facts)}, format duckdb>"
    in_notebook = mirror._repr_html_()
    assert "a&lt;b, shop</td></tr>" in in_notebook
    assert "cret" not in in_notebook
    assert not (tmp_path / "lake").exists()
