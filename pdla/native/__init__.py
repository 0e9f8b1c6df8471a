"""Shared libraries, with a Python inside, for C and Fortran. `python -m pdla.native.build` builds them."""
