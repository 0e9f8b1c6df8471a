"""What an installed pdla carries."""

from importlib.resources import files


def test_cuda_sources_are_in_the_package():
    assert "extern" in files("pdla.cuda").joinpath("pack.cu").read_text()
