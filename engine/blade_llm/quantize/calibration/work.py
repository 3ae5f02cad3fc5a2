"""What calibration asks of a job."""

from __future__ import annotations

from typing import Protocol

from blade_llm.models.config import ModelConfig
from blade_llm.quantize.calibration.images import SampleImages
from blade_llm.quantize.layout import Layout
from blade_llm.quantize.options import QuantizeOptions
from blade_llm.quantize.plan import Plan
from blade_llm.quantize.source import TensorReader


class Work(Protocol):
    """What is to be quantised: a :class:`~blade_llm.quantize.run.Job`."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def reader(self) -> TensorReader: ...

    @property
    def options(self) -> QuantizeOptions: ...

    @property
    def plan(self) -> Plan: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def images(self) -> SampleImages | None: ...

    @property
    def left(self) -> tuple[str, ...]: ...

    @property
    def states_in_files(self) -> bool: ...
