"""Functions of matrices: polar factors, singular values, signs, exponentials, roots, functions by eigenvalues."""
