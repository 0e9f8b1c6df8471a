"""Softmax attention: how columns are heads, which keys a query sees, and the softmax over them, a file each."""

from pdla.nn.layers.attention.attention import SelfAttention

__all__ = ["SelfAttention"]
