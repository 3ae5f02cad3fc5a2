"""The data path: one request, its attempts, and the relay of the response."""
