"""Compiles the products of adapters for GPUs that need not be there, and prints what each kernel needs, as JSON lines.

A program of its own, because kernels defined under ``TRITON_INTERPRET=1`` cannot be compiled. For Hopper ``ptxas``,
which comes with Triton, also says how many registers do not fit.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from engine_support.compile_operators import SHARED_MEMORY, TARGETS, TYPES
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from blade_llm.kernels.lora import triton as lora
from blade_llm.kernels.lora.device import DeviceTable
from blade_llm.spec.adapter_layout import ENTRY_HEAD, ENTRY_PART, UNIT, Place

TYPES |= {torch.float16: "fp16"}
PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
LAYERS = {"qkv": Place(0, 3584, (3584, 512, 512)), "up": Place(1, 3584, (18944, 18944)), "odd": Place(2, 83, (70,))}
"""Two of Qwen2.5-7B, and one of numbers that nothing divides."""


def compile_instead(target: Any, name: str) -> Any:
    """What takes the place of a kernel's launch."""

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        values = {**dict(zip([parameter.name for parameter in self.params], args, strict=False)), **kwargs}
        signature, constants, aligned = {}, {}, {}
        for index, parameter in enumerate(self.params):
            value = values.pop(parameter.name)
            exempt = parameter.do_not_specialize or parameter.do_not_specialize_on_alignment
            if parameter.is_constexpr:
                signature[parameter.name], constants[(index,)] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[parameter.name] = "*" + TYPES[value.dtype]
                aligned[(index,)] = [["tt.divisibility", 16]]
            else:
                signature[parameter.name] = "i32"
                if not exempt and value % 16 == 0:
                    aligned[(index,)] = [["tt.divisibility", 16]]
        source = ASTSource(fn=self, signature=signature, constexprs=constants, attrs=aligned)
        compiled = triton.compile(source, target=target, options=values)
        kernel = {"kernel": self.__name__, "form": name, "shared": compiled.metadata.shared, "spilled": 0}
        assembly = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
        kernel["tensor_cores"] = any(word in assembly for word in ("wgmma", "mma.sync", "v_mfma"))
        kernel["wide"] = "cp.async.cg.shared.global" in assembly or "ld.global.v4" in assembly
        if "ptx" in compiled.asm:
            kernel |= registers(compiled.asm["ptx"])
        print(json.dumps(kernel))

    return run


def registers(ptx: str) -> dict[str, int]:
    """Registers of a thread, and bytes of it that are spilled."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [str(PTXAS), "-v", "--gpu-name", "sm_90a", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    used, spilled = (re.search(rf"(\d+) {what}", said) for what in ("registers", "bytes spill stores"))
    assert used is not None
    assert spilled is not None, said
    return {"registers": int(used[1]), "spilled": int(spilled[1])}


def table_of(place: Place, dtype: torch.dtype, deterministic: bool) -> DeviceTable:
    return DeviceTable(
        weights=torch.zeros(2, UNIT, dtype=dtype),
        entries=torch.zeros(3, ENTRY_HEAD + 3 * ENTRY_PART, dtype=torch.int32),
        parts=torch.zeros(len(place.outputs), 3, dtype=torch.int32),
        step=place.step,
        inputs=place.inputs,
        outputs=place.outputs,
        max_rank=64,
        deterministic=deterministic,
    )


def main(target: str, *names: str) -> None:
    """``names``: of forms; all by default."""
    lora._shared_memory = lambda device: SHARED_MEMORY[target]  # type: ignore[assignment]
    cases = [(layer, tokens, torch.bfloat16, torch.bfloat16) for layer in ("qkv", "up") for tokens in (64, 4096)]
    cases += [("odd", 64, torch.bfloat16, torch.bfloat16), ("qkv", 64, torch.float16, torch.float16)]
    cases += [("qkv", tokens, torch.float32, torch.float32) for tokens in (64, 4096)]
    cases += [("qkv", tokens, torch.bfloat16, torch.float16) for tokens in (64, 4096)]
    for layer, tokens, of_x, of_weights in cases:
        name = f"{layer} {tokens} {TYPES[of_x]}" + ("" if of_x == of_weights else f" {TYPES[of_weights]}")
        if names and name not in names:
            continue
        JITFunction.run = compile_instead(TARGETS[target], name)
        place = LAYERS[layer]
        groups = lora.group_tokens(torch.zeros(tokens, dtype=torch.int32), 3, False)
        x, y = torch.zeros(tokens, place.inputs, dtype=of_x), torch.zeros(tokens, sum(place.outputs), dtype=of_x)
        lora.add_lora(x, y, table_of(place, of_weights, False), groups)


if __name__ == "__main__":
    main(*sys.argv[1:])
