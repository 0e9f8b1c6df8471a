"""Shared parts of scripts: start jobs, time ranks, and make the products and networks to run."""
