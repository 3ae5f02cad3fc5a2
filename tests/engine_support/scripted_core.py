"""An engine core whose model answers from a script: ``script.json`` in the model's folder, read for every request.

The script is a list of ``[mark, answers]``; the mark that stands last in a prompt chooses, the sample's number picks
one of its answers. Where a structure does not allow the script's next token, a random one that it allows is drawn.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

from engine_support.fake_runner import FakeForward, FakeRow, FakeRunner

from blade_llm.config import EngineConfig
from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.sampling.guided.grammars import GuidedGrammars
from blade_llm.sampling.guided.vocabulary import load_vocabulary
from blade_llm.scheduling.plan import StepPlan
from blade_llm.text.tokenizer import Tokenizer

EOS = 2
VOCABULARY = 384
STEP_SECONDS = 0.002
"""So that a client sees tokens come one by one."""


def write_script(model: Path, *entries: tuple[str, str | list[str]]) -> None:
    """What the model in the folder answers from now on."""
    (model / "script.json").write_text(json.dumps(entries), encoding="utf-8")


class ScriptedRunner(FakeRunner):
    def __init__(self, model: Path, config: EngineConfig) -> None:
        super().__init__(
            max_num_seqs=config.max_num_seqs,
            num_blocks=1024,
            max_model_len=config.max_model_len or 2048,
            vocab_size=VOCABULARY,
            max_batch_tokens=config.max_batch_tokens,
            verify=False,
        )
        self._model = model
        self._tokenizer = Tokenizer(model)
        self._scripts: dict[str, list[int]] = {}

    def launch_forward(self, plan: StepPlan) -> FakeForward:
        time.sleep(STEP_SECONDS)
        return super().launch_forward(plan)

    def _continue(self, row: FakeRow, count: int, allowed: set[int] | None = None) -> list[int]:
        new = row.new
        script = self._scripts.get(new.request_id)
        if script is None:
            script = self._scripts[new.request_id] = self._script(
                new.token_ids[: new.num_prompt_tokens], new.sample_index
            )
        written = len(row.token_ids) - new.num_prompt_tokens
        tokens = [*script[written : written + count], *[EOS] * count][:count]
        if allowed and tokens[0] not in allowed:
            return [sorted(allowed)[hash((row.digests[-1], written)) % len(allowed)]]
        return tokens

    def _script(self, prompt: Iterable[int], sample: int) -> list[int]:
        text = self._tokenizer.decode(list(prompt), skip_special_tokens=False)
        entries = json.loads((self._model / "script.json").read_text(encoding="utf-8"))
        place, answers = max(
            (text.rfind(mark), [answer] if isinstance(answer, str) else answer) for mark, answer in entries
        )
        answer = answers[sample % len(answers)] if place >= 0 else "no script"
        return self._tokenizer.encode(answer, add_special_tokens=False)


def build_core(config: EngineConfig) -> EngineCore:
    """``engine_support.scripted_core:build_core``"""
    model = config.model_dir
    runner = ScriptedRunner(model, config)
    info = EngineInfo(
        model=config.served_names[0],
        max_model_len=runner.max_model_len,
        device="cpu",
        dtype="float32",
        vocab_size=VOCABULARY,
        memory=runner.memory_plan,
        timings={},
    )
    grammars = GuidedGrammars(lambda: load_vocabulary(model, VOCABULARY, [EOS]), VOCABULARY)
    return EngineCore.from_config(
        config, runner, info, num_blocks=runner.num_blocks, eos_token_ids=(EOS,), grammars=grammars
    )
