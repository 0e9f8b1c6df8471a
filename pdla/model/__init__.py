"""Predicted costs: lower bounds of products, machines, and what work costs there."""

from pdla.model.bounds import received_lower_bound, scaling_ends

__all__ = ["received_lower_bound", "scaling_ends"]
