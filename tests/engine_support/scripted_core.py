"""An engine core whose model answers from a script: ``script.json`` in the model's folder, read for every request.

The script is a list of ``[mark, answers]``; the mark that stands last in a prompt chooses, the sample's number picks
one of its answers. What the answer shall look like is not looked at: the script is the model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
from engine_support.fake_runner import FakeForward, FakeRow, FakeRunner

from blade_llm.config import EngineConfig
from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.engine.messages import GenerateRequest
from blade_llm.scheduling.plan import StepPlan
from blade_llm.text.tokenizer import Tokenizer

EOS = 2
STEP_SECONDS = 0.002
"""So that a client sees tokens come one by one."""


def write_script(model: Path, *entries: tuple[str, str | list[str]]) -> None:
    """What the model in the folder answers from now on."""
    (model / "script.json").write_text(json.dumps(entries), encoding="utf-8")


class ScriptedRunner(FakeRunner):
    def __init__(self, model: Path, config: EngineConfig) -> None:
        super().__init__(1024, config.max_num_seqs, config.max_model_len or 2048, max_batch_tokens=2048, verify=False)
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
            script = self._scripts[new.request_id] = self._script(new.token_ids, new.sample_index)
        written = len(row.token_ids) - new.num_prompt_tokens
        return [*script[written : written + count], *[EOS] * count][:count]

    def _script(self, prompt: Iterable[int], sample: int) -> list[int]:
        text = self._tokenizer.decode(list(prompt), skip_special_tokens=False)
        entries = json.loads((self._model / "script.json").read_text(encoding="utf-8"))
        place, answers = max(
            (text.rfind(mark), [answer] if isinstance(answer, str) else answer) for mark, answer in entries
        )
        answer = answers[sample % len(answers)] if place >= 0 else "no script"
        return self._tokenizer.encode(answer, add_special_tokens=False)


class ScriptedCore(EngineCore):
    def add(self, message: GenerateRequest) -> None:
        sampling = msgspec.structs.replace(message.sampling, structure=None)
        for index, request_id in enumerate([message.request_id, *message.sibling_ids]):
            super().add(
                msgspec.structs.replace(
                    message, request_id=request_id, sibling_ids=[], sample_index=index, sampling=sampling
                )
            )


def build_core(config: EngineConfig) -> EngineCore:
    """``engine_support.scripted_core:build_core``"""
    runner = ScriptedRunner(config.model_dir, config)
    info = EngineInfo(
        model=config.served_names[0],
        max_model_len=runner.max_model_len,
        device="cpu",
        dtype="float32",
        memory=runner.memory_plan,
        timings={},
    )
    return ScriptedCore.from_config(config, runner, info, num_blocks=runner.num_blocks, eos_token_ids=(EOS,))
