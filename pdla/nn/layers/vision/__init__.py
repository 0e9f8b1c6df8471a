"""Layers of images: an activation is (pixels, channels), and a sample's pixels are rows that lie together."""
