"""Orthogonal factors: QR, least squares."""
