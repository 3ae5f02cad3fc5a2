"""Helpers of the operator's tests: small stand-ins for the programs, and objects to run them."""
