"""A simulated service for the web UI: what tests and screenshots of the page show without engines."""
