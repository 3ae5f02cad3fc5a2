"""What a server's ``/metrics`` says."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def read_exposition(text: str) -> dict[str, float]:
    """Each sample's value, by its name and its labels without the model's: ``requests_total{reason="stop"}``."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items() if name != "model_name")
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found
