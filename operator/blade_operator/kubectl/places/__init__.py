"""Where commands look and act."""
