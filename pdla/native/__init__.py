"""Calling pdla from C and Fortran: shared libraries with a Python inside. `python -m pdla.native.build` makes them."""
