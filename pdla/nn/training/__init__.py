"""Training: losses, optimizers, and clipped gradients."""
