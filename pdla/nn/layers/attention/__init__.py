"""Softmax attention, of which heads, masks and the softmax itself have a file each."""

from pdla.nn.layers.attention.attention import SelfAttention

__all__ = ["SelfAttention"]
