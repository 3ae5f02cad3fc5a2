"""Accepting client connections: how many, of whom, and what happens when descriptors run out."""
