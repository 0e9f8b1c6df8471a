"""Functions of matrices: the polar factor, the sign, the exponential, roots."""
