"""Statistics over time: sliding-window rates and distributions."""
