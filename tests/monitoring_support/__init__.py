"""The three programs under load, and a real Prometheus that scrapes them."""
