"""From what a user calls a model to a complete folder on this machine."""
