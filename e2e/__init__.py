"""End-to-end tests: the real images and chart on a real Kubernetes. ``python -m e2e`` runs them all."""
