"""What steps cost, and how much prefill one may carry."""
