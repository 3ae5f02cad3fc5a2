"""What Prometheus and Grafana are told about the three programs: written from their catalogues of metrics."""
