"""Orthogonal factors: QR, least squares, the polar factor."""
