"""What two stages of one core each reach beside one device with both cores, at 16 requests:
``python -m benchmarks.engine.pipeline_parallel``.

The model is that of ``make bench`` (Qwen2.5-0.5B's shape, random weights), whose output matrix is as large as nine of
its 24 layers. What stages cost is that one waits while the other has more to do, which for prompts is the first and for
decodes nearly the same, and that each step of a stage has half of the decodes. One request alone is computed by one
stage after the other, and so by one core. In a batch all requests begin and end together; a steady load has prompts
beside decodes.
"""

from __future__ import annotations

import sys

from benchmarks.engine.rank_rounds import LARGE, MANY, compare, compare_steady, core_of
from benchmarks.figures import Figure, report
from benchmarks.peers.model import random_model
from benchmarks.peers.peers import CACHE


def main() -> int:
    model = random_model(CACHE / "models" / "qwen2-0.5b")
    one, stages = core_of(model, seqs=LARGE), core_of(model, seqs=LARGE, pipeline_parallel_size=2)
    speeds, single, large = (compare(one, stages, batch) for batch in (MANY, 1, LARGE))
    steady = compare_steady(one, stages, 3 * MANY, at_once=MANY)
    smaller = compare(one, core_of(model, pipeline_parallel_size=2, pipeline_micro_batch=4), MANY)
    return report(
        "pipeline_parallel",
        [
            Figure(f"requests_batch_{MANY}", speeds.whole, "of one device", ">=", 0.9),
            Figure(f"decode_batch_{MANY}", speeds.decode, "of one device"),
            Figure(f"prefill_batch_{MANY}", speeds.prefill, "of one device"),
            Figure("decode_single", single.decode, "of one device"),
            Figure(f"requests_steady_{MANY}", steady, "of one device"),
            Figure(f"requests_batch_{MANY}_in_4_steps", smaller.whole, "of one device"),
            Figure(f"requests_batch_{LARGE}", large.whole, "of one device"),
            Figure(f"decode_batch_{LARGE}", large.decode, "of one device"),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
