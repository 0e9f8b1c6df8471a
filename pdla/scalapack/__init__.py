"""What ScaLAPACK's users need: its descriptors in Python, and the routines that libpdla_pblas.so takes over."""

from pdla.scalapack.descriptor import Descriptor, from_descriptor, to_descriptor

__all__ = ["Descriptor", "from_descriptor", "to_descriptor"]
