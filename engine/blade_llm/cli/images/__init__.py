"""Images on the server's command line: their flags, and what these come to."""
