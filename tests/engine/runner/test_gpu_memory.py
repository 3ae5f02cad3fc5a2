"""The GPU's memory in the load report: read now and then, and not at all on CPU."""

import pytest
import torch

from blade_llm.runner.gpu_memory import INTERVAL, GpuMemoryReader
from blade_protocol.state import GpuMemory


def test_a_reading_is_used_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    free, now = [30], [100.0]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[0], 80))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    read = GpuMemoryReader(torch.device("cuda", 0), lambda: now[0])
    assert read() == (GpuMemory(name="H100", used=50, total=80),)
    free[0] = 10
    now[0] += INTERVAL / 2
    assert read()[0].used == 50
    now[0] += INTERVAL
    assert read()[0].used == 70


def test_there_is_none_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: pytest.fail("there is no GPU to ask"))
    assert GpuMemoryReader(torch.device("cpu"))() == ()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_it_is_what_the_driver_says() -> None:
    device = torch.device("cuda", 0)
    (found,) = GpuMemoryReader(device)()
    assert found.name == torch.cuda.get_device_name(device)
    assert 0 < found.used <= found.total
