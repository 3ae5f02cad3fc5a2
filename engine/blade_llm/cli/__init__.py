"""Commands: parse flags, then call."""
