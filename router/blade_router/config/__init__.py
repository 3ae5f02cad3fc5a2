"""Configuration: parsing, watched files, the internal token and the replica count."""
