"""``check_flops_diff``: are the devices of this machine equally fast?

Ranks wait for each other in every layer, so one throttled or shared device slows all of them. Each device multiplies
the same matrices, one device after the other, and its best run counts. Without a GPU the one device is the CPU.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from blade_protocol.check import CheckItem

if TYPE_CHECKING:
    import torch

PASS_RATIO: Final = 1.20
WARNING_RATIO: Final = 2.00
CPU_SIZE: Final = 512
GPU_SIZE: Final = 4096
SECONDS_PER_DEVICE: Final = 0.1
MIN_RUNS: Final = 3


def check_flops_diff() -> CheckItem:
    """PASS when the fastest device is at most 1.2 times as fast as the slowest, WARNING up to 2, FAILED above.

    FAILED also when a device cannot multiply matrices, or multiplies wrongly.
    """
    import torch

    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())] or [torch.device("cpu")]
    flops = []
    for device in devices:
        try:
            flops.append(measure_flops(device))
        except (RuntimeError, ArithmeticError) as error:
            return CheckItem(name="check_flops_diff", status="FAILED", detail=f"{device} cannot be used: {error}")
    return judge(flops)


def judge(flops: list[float]) -> CheckItem:
    """The item for devices that reached ``flops`` floating-point operations per second."""
    ratio = max(flops) / min(flops)
    detail = f"max flops diff amoung {len(flops)} devices is {ratio:.2f}"
    if ratio <= PASS_RATIO:
        return CheckItem(name="check_flops_diff", status="PASS", detail=detail)
    slowest = flops.index(min(flops))
    return CheckItem(
        name="check_flops_diff",
        status="WARNING" if ratio <= WARNING_RATIO else "FAILED",
        detail=f"{detail}, more than {PASS_RATIO:.2f}; device {slowest} is the slowest: look for other programs on it, "
        "throttling or a different model",
    )


def measure_flops(device: torch.device) -> float:
    """Floating-point operations per second of ``device`` in a square matrix product (fp32 on CPU, fp16 on a GPU).

    Raises ``RuntimeError`` from the device and ``ArithmeticError`` when the product is wrong.
    """
    import torch

    on_gpu = device.type == "cuda"
    size, dtype = (GPU_SIZE, torch.float16) if on_gpu else (CPU_SIZE, torch.float32)
    # Entries of 1/size and ones: every entry of the product is exactly 1, whatever the order of the additions.
    left = torch.full((size, size), 1.0 / size, device=device, dtype=dtype)
    right = torch.ones((size, size), device=device, dtype=dtype)
    product = left @ right  # also loads the library and wakes the device
    if not bool((product == 1.0).all()):
        raise ArithmeticError("a matrix product came out wrong")
    best, runs = float("inf"), 0
    end = time.perf_counter() + SECONDS_PER_DEVICE
    while runs < MIN_RUNS or time.perf_counter() < end:
        begin = time.perf_counter()
        torch.mm(left, right, out=product)
        if on_gpu:
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begin)
        runs += 1
    return 2.0 * size**3 / best
