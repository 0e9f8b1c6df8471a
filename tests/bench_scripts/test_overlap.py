"""bench/cases/overlap.py: its replacements for verbs and for the local GEMM take the same arguments as these."""

from bench.cases import overlap


def test_a_row_for_each_pass(monkeypatch):
    for name, value in {"GRID": (1, 1, 2), "SEQUENCES": 8, "HIDDEN": 8, "PASSES": 1, "BANDWIDTH": 1e12}.items():
        monkeypatch.setattr(overlap, name, value)
    assert [row[:2] for row in overlap.layer_overlap(0.0) if not isinstance(row, str)] == [
        (shards, way) for shards in (1, 2, 4) for way in ("forward", "backward")
    ]


def test_a_row_for_each_product(monkeypatch):
    monkeypatch.setattr(overlap, "THREADS", (("summa", 4, 32, 8), ("cannon", 4, 32, None), ("fetch", 4, 32, 8)))
    monkeypatch.setattr(overlap, "TURNS", 1)
    rows = [row for row in overlap.run_threads(1e-4) if not isinstance(row, str)]
    assert [row[:4] for row in rows] == list(overlap.THREADS) and all(len(row) == 10 for row in rows)
