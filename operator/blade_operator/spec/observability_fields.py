"""The fields of ``spec.tracing`` and ``spec.logFormat``: what routers and engines tell of their requests, and how."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from blade_operator.spec.types import Fraction, Hint, Record

_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
CollectorUrl = Annotated[
    str,
    StringConstraints(pattern=rf"^https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:{_PORT})?(/[!-~]*)?$", max_length=512),
    Hint("the URL of an OpenTelemetry collector like http://collector.monitoring:4318"),
]
LogFormat = Literal["text", "json"]


class Tracing(Record):
    """OpenTelemetry traces of requests through routers and engines."""

    endpoint: CollectorUrl = Field(description="Collector of OTLP over HTTP, like `http://collector.monitoring:4318`.")
    sampling_ratio: Fraction = Field(
        default="1",
        description='Share of requests that are traced, like `"0.01"`, unless clients decide.',
    )
