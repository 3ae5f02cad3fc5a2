"""Text models that see images."""
