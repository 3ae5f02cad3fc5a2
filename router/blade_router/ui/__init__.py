"""The web UI: its static files, and the event stream that they show."""
