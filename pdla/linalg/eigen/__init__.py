"""Eigenvalues and eigenvectors."""
