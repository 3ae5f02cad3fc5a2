"""The slots of engines that come and go: what hangs on one takes nothing from the others."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

from blade_protocol.routing import QueueConfig
from blade_router.admission.capacity.engine_limit import UNLIMITED
from blade_router.admission.capacity.slots import WIDTH, Slots
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.endpoints.load_report import LoadReport
from blade_router.workers.shared_memory import PrivateRow


@dataclass(eq=False)
class Engine:
    """An endpoint, as far as slots are concerned."""

    in_flight: int = 0
    removed: bool = False
    report: LoadReport = field(default_factory=LoadReport)

    def reports(self, slots: int) -> "Engine":
        self.report.update(running=0, waiting=0, capacity=slots)
        return self


def slots_of(serving: list[Engine], config: QueueConfig | None = None) -> Slots:
    endpoints = SimpleNamespace(serving=lambda service: cast(list[Endpoint], list(serving)))
    slots = Slots(cast(EndpointSet, endpoints), "", PrivateRow(WIDTH))
    slots.configure(config or QueueConfig(), 1, several_keys=True)
    return slots


def test_requests_on_an_engine_that_serves_no_more_take_no_slot_of_another() -> None:
    for config in (QueueConfig(), QueueConfig(endpoint_requests=16)):
        idle, hanging = Engine().reports(16), Engine().reports(16)
        serving = [idle, hanging]
        slots = slots_of(serving, config)
        for _ in range(16):
            slots.take("heavy")
        hanging.in_flight = 16
        serving.remove(hanging)
        slots.update()
        assert slots.free() == 16
        hanging.removed = True  # its pod is gone from the Service, and its streams go on
        slots.update()
        assert slots.free() == 16
        for _ in range(16):
            hanging.in_flight -= 1
            slots.release("heavy")
            slots.update()
        assert slots.free() == 16


def test_an_engine_that_has_yet_to_report_is_not_sent_everything() -> None:
    serving = [Engine().reports(16), Engine().reports(8)]
    slots = slots_of(serving)
    serving.append(Engine())
    slots.update()
    assert slots.total == 16 + 8 + 8
    serving[:] = [Engine()]
    slots.update()
    assert slots.total == UNLIMITED, "nothing is known of any"
