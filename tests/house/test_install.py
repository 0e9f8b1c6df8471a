"""What an installed pdla carries."""

from importlib.resources import files


def test_cuda_sources_are_in_the_package():
    for name in ("pack", "uniform", "gelu", "columns", "rows"):
        assert "extern" in files("pdla.cuda").joinpath(f"{name}.cu").read_text()
