"""What commands show of their work while it lasts: a bar on a terminal, lines in a log."""
