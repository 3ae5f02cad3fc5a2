"""The HTTP client of the load generator, and the measurement that it takes of each request."""
