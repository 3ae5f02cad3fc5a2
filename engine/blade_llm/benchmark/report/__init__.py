"""Summary, tables and charts of a run."""
