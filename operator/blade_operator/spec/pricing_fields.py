"""The fields of ``spec.pricing``: what engines cost, as their owner says."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from blade_operator.spec.scaling_fields import Amount
from blade_operator.spec.types import Hint, Record

Currency = Annotated[
    str, StringConstraints(pattern=r"^[A-Z]{3}$", max_length=3), Hint("three capital letters like EUR")
]


class Pricing(Record):
    """What engines cost."""

    currency: Currency = Field(description="Of the amounts, as `EUR`.")
    per_engine_hour: Amount | None = Field(default=None, description="Of one engine, as `2.50`.")
    per_gpu_hour: Amount | None = Field(default=None, description="Of one GPU.")
