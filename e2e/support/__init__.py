"""What several end-to-end tests need."""
