"""The fake engine of test servers, in three configurations: paced, unpaced and scripted.

A paced engine steps so slowly that clients can leave in mid-stream, and can be made to fail. A scripted one says what
``script.json`` in the model's folder has, read for every request: a list of ``[mark, outputs]``; the mark that stands
last in a prompt chooses, the sample's number picks one of its outputs. Where a structure does not allow the script's
next token, one that it allows is sampled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

from engine_support.fake_core import EOS, HIDDEN, FakeCore
from engine_support.fake_runner import FakeForward, FakeRunner, FakeSlot

from blade_llm.config import EngineConfig
from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.models.errors import NotEnoughMemoryError
from blade_llm.sampling.guided.grammars import CachingGrammarCompiler
from blade_llm.sampling.guided.vocabulary import load_vocabulary
from blade_llm.sampling.masks import DraftMasks
from blade_llm.scheduling.plan import StepPlan
from blade_llm.text.tokenizer import Tokenizer

POISON = 383
"""A prompt that begins with this token id makes a paced engine raise."""
LONG_STEP = 382
"""A prompt that begins with this token id makes a paced engine compute for :data:`LONG_STEP_SECONDS`."""
LONG_STEP_SECONDS = 4.0
TOO_SMALL = 7
"""``max_kv_blocks`` at which the build of a paced engine fails as it does without memory."""
SCRIPTED_VOCABULARY = 384


class ServerRunner(FakeRunner):
    """A fake runner for a whole server.

    Args:
        step_seconds: what a step takes.
        script: folder of the model and of its script; None: tokens follow from the context.
    """

    def __init__(self, config: EngineConfig, *, step_seconds: float = 0.0, script: Path | None = None) -> None:
        super().__init__(
            num_blocks=config.max_kv_blocks or 1024,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len or 2048,
            vocab_size=97 if script is None else SCRIPTED_VOCABULARY,
            max_batch_tokens=config.max_batch_tokens,
            verify=False,
        )
        self._step_seconds = step_seconds
        self._folder = script
        self._tokenizer = None if script is None else Tokenizer(script)
        self._scripts: dict[str, list[int]] = {}

    def launch_forward(self, plan: StepPlan, draft_masks: DraftMasks | None = None) -> FakeForward:
        if self._step_seconds and not self._folder and any(new.token_ids[0] == POISON for new in plan.new_requests):
            raise RuntimeError("poisoned prompt")
        if any(new.token_ids[0] == LONG_STEP for new in plan.new_requests):
            until = time.monotonic() + LONG_STEP_SECONDS
            while time.monotonic() < until:
                pass
        time.sleep(self._step_seconds)
        return super().launch_forward(plan, draft_masks)

    def _continue(self, slot: FakeSlot, count: int, allowed: set[int] | None = None) -> list[int]:
        if self._folder is None:
            return super()._continue(slot, count, allowed)
        new = slot.new
        script = self._scripts.get(new.request_id)
        if script is None:
            script = self._scripts[new.request_id] = self._script(
                self._folder, new.token_ids[: new.num_prompt_tokens], new.sample_index
            )
        written = len(slot.token_ids) - new.num_prompt_tokens
        tokens = [*script[written : written + count], *[EOS] * count][:count]
        if allowed and tokens[0] not in allowed:
            return [sorted(allowed)[hash((slot.digests[-1], written)) % len(allowed)]]
        return tokens

    def _script(self, folder: Path, prompt: Iterable[int], sample: int) -> list[int]:
        assert self._tokenizer is not None
        text = self._tokenizer.decode(list(prompt), skip_special_tokens=False)
        entries = json.loads((folder / "script.json").read_text(encoding="utf-8"))
        place, outputs = max(
            (text.rfind(mark), [output] if isinstance(output, str) else output) for mark, output in entries
        )
        output = outputs[sample % len(outputs)] if place >= 0 else "no script"
        return self._tokenizer.encode(output, add_special_tokens=False)


def write_script(model: Path, *entries: tuple[str, str | list[str]]) -> None:
    """Write what the scripted model in the folder says from now on."""
    (model / "script.json").write_text(json.dumps(entries), encoding="utf-8")


def paced(config: EngineConfig) -> EngineCore:
    """``engine_support.fake_engine:paced``"""
    if config.max_kv_blocks == TOO_SMALL:
        raise NotEnoughMemoryError("one request needs 128 blocks; raise --max_kv_blocks to 128")
    return _core(config, ServerRunner(config, step_seconds=0.004))


def unpaced(config: EngineConfig) -> EngineCore:
    """``engine_support.fake_engine:unpaced``: as fast as it can."""
    return _core(config, ServerRunner(config))


def scripted(config: EngineConfig) -> EngineCore:
    """``engine_support.fake_engine:scripted``, at a pace at which clients see tokens come one by one."""
    model = config.model_dir
    grammars = CachingGrammarCompiler(lambda: load_vocabulary(model, SCRIPTED_VOCABULARY, [EOS]), SCRIPTED_VOCABULARY)
    return _core(config, ServerRunner(config, step_seconds=0.002, script=model), grammars)


def _core(config: EngineConfig, runner: ServerRunner, grammars: CachingGrammarCompiler | None = None) -> EngineCore:
    info = EngineInfo(
        model=config.served_names[0],
        max_model_len=runner.max_model_len,
        device="cpu",
        dtype="float32",
        vocab_size=0 if grammars is None else runner.vocab_size,
        hidden_size=HIDDEN,
        revision=config.revision,
        memory=runner.memory_plan,
        timings={"weights": 0.0},
    )
    return FakeCore.from_config(
        config, runner, info, num_blocks=runner.num_blocks, eos_token_ids=(EOS,), grammars=grammars
    )
