"""Lending between the replicas of a router: each has a share of every limit, and lends what it does not use."""
