"""The whole sampling on Triton kernels: a seeded request gets the tokens it gets from the torch operators, alone or in
any batch, and launching a sample never waits for the device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import engine_support.triton_interpreter as triton_interpreter
import pytest
import torch
from engine_support.token_masks import masks_for
from engine_support.triton_interpreter import DEVICE
from torch.utils._python_dispatch import TorchDispatchMode

from blade_llm.kernels.warm import warm_step
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.sampling.sampler import SampledSlots, Sampler, SamplerOutput
from blade_llm.sampling.table import SamplingTable

VOCABULARY, PROMPT = 3001, 3
KINDS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.9, seed=11),
    SamplingParams(temperature=1.4, seed=11, top_k=30),
    SamplingParams(temperature=1.1, seed=2**63 + 5, top_p=0.9),
    SamplingParams(temperature=1.2, seed=8, min_p=0.05),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, logprobs=2),
    SamplingParams(temperature=1.2, seed=-4, presence_penalty=1.0, top_p=0.95, top_k=500, logprobs=0),
    SamplingParams(temperature=0.7, seed=5, frequency_penalty=0.5, min_tokens=9, max_tokens=12, top_k=40),
    SamplingParams(temperature=0.0, bad_words_token_ids=((2, 8, 9), (5, 9), (2900,)), logit_bias={9: 50.0, 5: 20.0}),
    SamplingParams(temperature=1.0, seed=6, allowed_token_ids=(5, 77, 2999), bad_words_token_ids=((77,),)),
]
TOKENS = [[i, 2, i + 5, 2, 8, 2][: PROMPT + i % 3] for i in range(len(KINDS))]
LOGITS = torch.randn(len(KINDS), VOCABULARY, generator=torch.Generator().manual_seed(5)) * 2
MASKED = (0, int(LOGITS[7].argmax()))


GUIDED = {0: [5, 2999], 2: list(range(0, VOCABULARY, 3)), 7: [1, 8, 64]}
"""What requests of these kinds may sample, where they have a grammar."""


def sample(
    kinds: list[int], slots: list[int], watched: AbstractContextManager[Any] | None = None, *, guided: bool = False
) -> SamplerOutput:
    """Sample for requests of these kinds in these slots."""
    masks = masks_for(kinds, GUIDED, VOCABULARY) if guided else None
    table = SamplingTable(16, DEVICE)
    token_ids = torch.full((16, 32), 7, dtype=torch.int32)
    for kind, slot in zip(kinds, slots, strict=True):
        table.write(slot, KINDS[kind], num_prompt_tokens=PROMPT, masked_until_min_tokens=MASKED)
        token_ids[slot, : len(TOKENS[kind])] = torch.tensor(TOKENS[kind])
    positions = [len(TOKENS[kind]) for kind in kinds]
    index, lengths = torch.tensor(slots, device=DEVICE), torch.tensor(positions, device=DEVICE)
    sampler, logits = Sampler(table, token_ids.to(DEVICE)), LOGITS[kinds].to(DEVICE)
    with watched or nullcontext():
        return sampler.sample(logits, SampledSlots(slots, positions, index, lengths), masks)


class Waits(TorchDispatchMode):
    """Notes operations whose result, or whose size, the host must wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name.startswith("index") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool
            for index in (args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else [])
        )
        if by_mask or name in ("_local_scalar_dense", "nonzero", "masked_select", "repeat_interleave", "unique"):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def no_waiting() -> Iterator[None]:
    """Fails when the host waits for the device; on CPU, when an operation runs that would make it wait on a GPU."""
    if triton_interpreter.COMPILED:
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return
    with Waits() as waits:
        yield
    assert waits.seen == []


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of all kinds, sampled together by the torch operators; from then on everything is Triton."""
    if triton_interpreter.COMPILED:
        triton_interpreter.use_backend(monkeypatch, "torch")
    tokens = sample(list(range(len(KINDS))), list(range(len(KINDS)))).tokens.tolist()
    triton_interpreter.use_triton(monkeypatch)
    return tokens


def test_same_tokens_as_torch_alone_and_in_any_batch(by_torch: list[int]) -> None:
    everything = list(range(len(KINDS)))
    assert by_torch[8] == 5, "9 is likelier, and would complete a bad word"
    assert sample(everything, [9, 2, 14, 7, 0, 5, 11, 1, 4, 12]).tokens.tolist() == by_torch
    assert sample(everything[::-1], list(range(len(KINDS)))).tokens.tolist() == by_torch[::-1]
    for kind in everything:
        assert sample([kind], [13]).tokens.tolist() == [by_torch[kind]]
    for kinds in ([0, 5], [1, 2, 3], [6, 0], [7, 4]):
        assert sample(kinds, [3, 12, 6][: len(kinds)]).tokens.tolist() == [by_torch[kind] for kind in kinds]


def test_same_tokens_as_torch_under_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = list(range(len(KINDS)))
    if triton_interpreter.COMPILED:
        triton_interpreter.use_backend(monkeypatch, "torch")
    expected = sample(everything, everything, guided=True).tokens.tolist()
    assert all(expected[kind] in allowed for kind, allowed in GUIDED.items())
    triton_interpreter.use_triton(monkeypatch)
    assert sample(everything, everything, guided=True).tokens.tolist() == expected
    assert [sample([kind], [3], guided=True).tokens.item() for kind in everything] == expected


@pytest.mark.usefixtures("by_torch")
@pytest.mark.parametrize("kinds", [[kind] for kind in range(len(KINDS))] + [list(range(len(KINDS)))], ids=str)
@pytest.mark.parametrize("guided", [False, True], ids=["free", "guided"])
def test_never_waits(kinds: list[int], guided: bool) -> None:
    sample(kinds, kinds, guided=guided)  # compiles
    sample(kinds, kinds, no_waiting(), guided=guided)


@pytest.mark.skipif(triton_interpreter.COMPILED, reason="the torch operators may wait, on CPU it costs nothing")
def test_the_watch_notices_waiting() -> None:
    with pytest.raises(AssertionError, match="nonzero"):
        sample([2], [2], no_waiting())


def test_logprobs_are_those_of_torch(by_torch: list[int]) -> None:
    logprobs = sample(list(range(len(KINDS))), list(range(len(KINDS)))).logprobs
    assert logprobs is not None
    assert (logprobs.indices, logprobs.counts) == ([5, 6], [2, 0])
    expected = LOGITS[[5, 6]].log_softmax(-1)
    chosen = expected.gather(1, torch.tensor(by_torch)[[5, 6], None])[:, 0]
    torch.testing.assert_close(logprobs.chosen.cpu(), chosen, atol=1e-5, rtol=1e-5)
    assert logprobs.top_tokens[0].tolist() == expected[0].topk(2).indices.tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not triton_interpreter.COMPILED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nothing_compiles_after_warm(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    table = torch.zeros(16, 32, dtype=torch.int32, device=DEVICE)
    warm_step(table, table, 16, torch.zeros(1, VOCABULARY, dtype=dtype, device=DEVICE))
    monkeypatch.setattr(sys.modules[__name__], "LOGITS", LOGITS.to(dtype))
    compiled: list[object] = []
    knobs.runtime.jit_post_compile_hook = lambda *args, **kwargs: compiled.append(kwargs)
    try:
        for kinds in ([0], [1], [2, 7], [0, 3, 6], list(range(len(KINDS)))):
            sample(kinds, kinds)
            sample(kinds, kinds, guided=True)
    finally:
        knobs.runtime.jit_post_compile_hook = None
    assert not compiled
