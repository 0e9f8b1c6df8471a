"""Predictions: dry runs in which all ranks have clocks, and the fastest ways on a described machine.

event          work or a message, with its start and its end
clock          a rank's time, by a machine's rates (all_ranks.py)
critical path  work and messages that lead without a gap from a run's start to its end (critical_path.py)
split          where the seconds of a run went (split.py)
choice         a scheme on a grid, for a transformer (networks.py)
point          the fastest choice on one number of ranks (scaling.py)

matmul/search has the choices of a product, and the search for the fastest choice.
"""

from pdla.matmul.search.fastest import Found
from pdla.matmul.search.products import Product
from pdla.simulate.networks import Transformer
from pdla.simulate.scaling import Point, scaling

__all__ = ["Found", "Point", "Product", "Transformer", "scaling"]
