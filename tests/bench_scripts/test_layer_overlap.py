"""bench/layer_overlap.py: its replacements for verbs and for the local GEMM take the same arguments as these."""

from bench import layer_overlap


def test_a_line_for_each_pass(monkeypatch, capsys):
    for name, value in {"GRID": (1, 1, 2), "SEQUENCES": 8, "HIDDEN": 8, "PASSES": 1, "BANDWIDTH": 1e12}.items():
        monkeypatch.setattr(layer_overlap, name, value)
    layer_overlap.main(0.0)
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:]] == [
        [shards, way] for shards in "124" for way in ("forward", "backward")
    ]
