"""Predictions: dry runs in which all ranks have clocks (who waits for whom), and the fastest ways on a described machine.

event          work or a message, with the times at which it begins and ends
clock          a rank's time, by a machine's rates (all_ranks.py)
critical path  the work and messages that lead without a gap from the start of a run to its end (critical_path.py)
split          where the seconds of a run went (split.py)
choice         a scheme on a grid, which candidates for a transformer are made of (networks.py); those for a product, and the
               search, are matmul's (matmul/search)
point          what is fastest on one number of ranks of ever more (scaling.py)
"""

from pdla.matmul.search.fastest import Found
from pdla.matmul.search.products import Product
from pdla.simulate.networks import Transformer
from pdla.simulate.scaling import Point, scaling

__all__ = ["Found", "Point", "Product", "Transformer", "scaling"]
