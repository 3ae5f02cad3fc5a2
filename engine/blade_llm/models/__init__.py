"""Model families: which are served, their configuration, and the classes that compute them."""
