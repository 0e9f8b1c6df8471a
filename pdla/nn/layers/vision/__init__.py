"""Layers of images: an activation is (pixels, channels), a sample's pixels are consecutive rows."""
