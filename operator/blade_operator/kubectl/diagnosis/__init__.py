"""What `doctor` finds, and the bundle that it writes."""
