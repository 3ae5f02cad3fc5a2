"""The slots of engines that come and go: what hangs on one takes nothing from the others."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from blade_protocol.routing import QueueConfig
from blade_router.admission.capacity.slots import REPORT_SECONDS, WIDTH, Slots
from blade_router.endpoints.confinement import Confinement
from blade_router.endpoints.endpoint import UNLIMITED, Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.endpoints.load_report import LoadReport
from blade_router.workers.shared_memory import PrivateRow


@dataclass(eq=False)
class Engine:
    """An endpoint, as far as slots are concerned."""

    in_flight: int = 0
    removed: bool = False
    room: int = 0
    report: LoadReport = field(default_factory=LoadReport)

    def reports(self, slots: int) -> "Engine":
        self.report.update(running=0, waiting=0, capacity=slots)
        return self


def slots_of(serving: list[Engine], config: QueueConfig | None = None) -> Slots:
    endpoints = SimpleNamespace(serving=lambda service: cast(list[Endpoint], list(serving)), confinement=Confinement())
    slots = Slots(cast(EndpointSet, endpoints), "", PrivateRow(WIDTH))
    slots.configure(config or QueueConfig(), 1, several_keys=True)
    return slots


@pytest.mark.interpreted
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


@pytest.mark.interpreted
def test_an_engine_that_has_yet_to_report_is_not_sent_everything() -> None:
    serving = [Engine().reports(16), Engine().reports(8)]
    slots = slots_of(serving)
    serving.append(Engine())
    slots.update()
    assert slots.total == 16 + 8 + 8
    serving[:] = [Engine()]
    slots.update()
    assert slots.total == UNLIMITED, "nothing is known of any"


def confined_slots(serving: list[Engine], part: list[Engine], routers: int = 1, **config: Any) -> Slots:
    """The key ``bad`` is confined to ``part``."""
    confinement = Confinement()
    confinement.part = lambda service: cast(list[Endpoint], part)  # type: ignore[method-assign]
    for name in ("0", "1"):
        confinement.convicted("bad", cast(Endpoint, SimpleNamespace(name=name)))
    found = SimpleNamespace(
        serving=lambda service: list(serving), of_service=lambda service: list(serving), confinement=confinement
    )
    slots = Slots(cast(EndpointSet, found), "", PrivateRow(WIDTH))
    slots.configure(QueueConfig(**config), routers, several_keys=True)
    return slots


@pytest.mark.interpreted
def test_a_confined_key_has_the_slots_of_its_engines_and_nobody_else_has_them() -> None:
    for share in (0.875, 1.0):
        engines = [Engine().reports(8) for _ in range(4)]
        slots = confined_slots(engines, engines[:1], key_share=share)
        for _ in range(8):
            assert slots.admits("bad", 1.0, slots.free())
            slots.take("bad")
        assert not slots.admits("bad", 1.0, slots.free())
        assert slots.confines(["bad"])
        assert not slots.confines(["bad", "good"])
        taken = 0
        while slots.admits("good", 1.0, slots.free()):
            slots.take("good")
            taken += 1
        assert taken == 24 if share == 1.0 else 20 <= taken <= 24


@pytest.mark.interpreted
def test_slots_of_a_confined_keys_engines_are_kept_from_others_only_beside_other_engines() -> None:
    engines = [Engine().reports(8) for _ in range(4)]
    serving = list(engines)
    slots = confined_slots(serving, engines[:1], key_share=1.0)
    for _ in range(24):
        assert slots.admits("good", 1.0, slots.free())
        slots.take("good")
    assert not slots.admits("good", 1.0, slots.free())
    for _ in range(24):
        slots.release("good")
    del serving[1:]
    slots.update()
    assert slots.admits("good", 1.0, slots.free()), "there is nothing else"


@pytest.mark.interpreted
def test_a_confined_key_has_a_slot_of_each_of_many_routers() -> None:
    engines = [Engine().reports(3) for _ in range(4)]
    slots = confined_slots(engines, engines[:1], routers=4)
    assert slots.admits("bad", 1.0, slots.free())


@pytest.mark.interpreted
def test_what_a_report_says_of_others_outlives_neither_its_requests_nor_itself() -> None:
    engine = Engine(in_flight=16)
    endpoints = SimpleNamespace(serving=lambda service: [engine], confinement=Confinement())
    now = 1000.0
    slots = Slots(cast(EndpointSet, endpoints), "", PrivateRow(WIDTH), clock=lambda: now)
    engine.report.update(running=16, waiting=0, capacity=20)
    engine.report.reported_at = now
    slots.configure(QueueConfig(), 2, several_keys=True)
    assert engine.room == 20
    engine.in_flight = 0
    slots.update()
    assert engine.room == 20, "those were this router's own"
    engine.report.update(running=16, waiting=0)
    engine.report.reported_at = now = 1001.0
    slots.update()
    assert engine.room == 4
    now += 2 * REPORT_SECONDS
    slots.update()
    assert engine.room == 20
