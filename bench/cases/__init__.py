"""The cases of `python -m bench`: functions that show one figure or one table each, by subject."""
