"""Tries forms of the attention kernels on this GPU and prints their times, best first: where the tables in
``kernels/paged_attention/triton_forms.py`` come from.

By hand: ``python -m benchmarks.gpu.tune [qwen2.5-7b|llama3-8b]``."""

from __future__ import annotations

import itertools
import sys

from benchmarks.gpu.attention import Step, attention_case
from benchmarks.gpu.machine import seconds
from benchmarks.gpu.shapes import LLAMA, QWEN
from blade_llm.kernels.paged_attention.triton_forms import TABLES, Config, config_of

FORMS = {
    "decode": (
        [Step(f"b{batch}", [1] * batch, [1024] * batch) for batch in (1, 8, 64)],
        [Config(16, *form) for form in itertools.product((32, 64, 128), (2, 4, 8), (2, 3, 5))],
    ),
    "many_decodes": (
        [Step(f"b{batch}", [1] * batch, [1024] * batch) for batch in (128, 256)],
        [Config(16, *form) for form in itertools.product((32, 64, 128), (2, 4, 8), (2, 3, 5))],
    ),
    "prefill": (
        [Step("1024", [1024], [1024]), Step("8192", [8192], [8192])],
        [Config(*form) for form in itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 5))],
    ),
}


def main() -> None:
    wanted = sys.argv[1] if len(sys.argv) > 1 else QWEN.name
    shape = next(shape for shape in (QWEN, LLAMA) if shape.name == wanted)
    for form, (steps, configs) in FORMS.items():
        cases = [attention_case(shape, step) for step in steps]
        table, size = TABLES[form], shape.head_dim
        before = table[size]
        rows: list[tuple[list[float], Config]] = []
        for config in configs:
            table[size] = config
            config_of.cache_clear()
            try:
                rows.append(([seconds(case.run) * 1e6 for case in cases], config))
            except Exception as error:  # a form that needs more registers or shared memory than there are
                print(f"{config}: {type(error).__name__}")
        table[size] = before
        config_of.cache_clear()
        best = [min(times) for times in zip(*(times for times, _ in rows), strict=True)]
        print(form, [step.name for step in steps], "microseconds; now", before)
        for times, config in sorted(rows, key=lambda row: sum(t / b for t, b in zip(row[0], best, strict=True)))[:10]:
            print(" ".join(f"{time:9.1f}" for time in times), config)


if __name__ == "__main__":
    main()
