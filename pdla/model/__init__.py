"""What a product costs, before it runs: lower bounds that no algorithm beats."""

from pdla.model.bounds import received_lower_bound, scaling_ends

__all__ = ["received_lower_bound", "scaling_ends"]
