"""For users of ScaLAPACK: its descriptors in Python, and the PBLAS routines that libpdla_pblas.so replaces."""

from pdla.scalapack.descriptor import Descriptor, from_descriptor, to_descriptor

__all__ = ["Descriptor", "from_descriptor", "to_descriptor"]
