"""bench/layer_overlap.py: its replacements for verbs and for the local GEMM take the same arguments as these."""

import importlib
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_a_line_for_each_pass(monkeypatch, capsys):
    monkeypatch.syspath_prepend(BENCH)
    script = importlib.import_module("layer_overlap")
    for name, value in {"GRID": (1, 1, 2), "SEQUENCES": 8, "HIDDEN": 8, "PASSES": 1, "BANDWIDTH": 1e12}.items():
        monkeypatch.setattr(script, name, value)
    script.main(0.0)
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:]] == [
        [shards, way] for shards in "124" for way in ("forward", "backward")
    ]
