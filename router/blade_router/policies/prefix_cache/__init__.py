"""What engines have in their prefix caches: the interface of the indexes, the approximate one, and recorded choices."""
