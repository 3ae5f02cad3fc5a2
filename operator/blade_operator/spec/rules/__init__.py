"""Rules that span fields: each in CEL, for the API server, and in Python."""
