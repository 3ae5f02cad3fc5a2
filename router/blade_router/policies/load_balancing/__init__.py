"""Load balancing without affinity: round robin, random, power of two choices, least request and least token."""
