"""Everything that needs a GPU, in seven parts of at most eight minutes each.

    python -m benchmarks.gpu           all parts; PART=kernels, quantization, ranks, engine, bench, lora or
                                       speculation for one, QUICK=1 for less

Each part is a process of its own. Without a GPU this is a dry run on tiny shapes (:mod:`benchmarks.gpu.machine`).
"""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.gpu import wheels

PARTS = ("kernels", "quantization", "ranks", "engine", "bench", "lora", "speculation")


def main() -> int:
    part = os.environ.get("PART") or "all"
    if part not in (*PARTS, "all"):
        raise SystemExit(f"PART={part} is none of {', '.join(PARTS)}")
    wheels.use()
    environment = {**os.environ}
    packages = [str(wheels.ROOT), *(str(wheels.ROOT / top) for top in ("engine", "router"))]
    environment["PYTHONPATH"] = os.pathsep.join([*packages, environment.get("PYTHONPATH", "")])
    if not _has_gpu():
        environment["TRITON_INTERPRET"] = "1"
    codes = []
    for name in PARTS if part == "all" else (part,):
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.gpu.{name}"]
        codes.append(subprocess.run(command, cwd=wheels.ROOT, env=environment, check=False).returncode)
    return int(any(codes))


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
