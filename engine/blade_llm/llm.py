"""Offline inference: the engine in this process, for scripts and notebooks.

from blade_llm import LLM, SamplingParams
outputs = LLM(model="DIR").generate(["A prompt", "another"], SamplingParams(max_tokens=64))
outputs[0].outputs[0].text
"""

from __future__ import annotations

import itertools
import logging
import random
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from blade_llm.config import PACKED_CACHE_BYTES, EngineConfig, SpeculativeConfig
from blade_llm.engine.core import EngineCore
from blade_llm.engine.messages import AdapterReply, GenerateRequest, LoadAdapter
from blade_llm.engine.messages import RequestOutput as EngineOutput
from blade_llm.hub.resolve import resolve_model
from blade_llm.models.dtypes import DTYPE_ALIASES
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.implementation import read_model_config
from blade_llm.offline_images import MediaSources, OfflineImages, TokenPrompt, WrittenPrompt, offline_serving
from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_llm.sampling.restrictions import word_sequences
from blade_llm.scheduling.request import RequestRefusedError
from blade_llm.speculative_options import draft_tokenizer_folder, require_same_tokens, speculative_of
from blade_llm.text.chat_template import load_chat_template
from blade_llm.text.output_text import OutputText
from blade_llm.text.tokenizer import Tokenizer
from blade_llm.vllm_options import engine_fields
from blade_llm.weights.checkpoint import check_weights, open_checkpoint

_log: Final = logging.getLogger(__name__)
Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or vLLM's form of either with images: ``{"prompt": "…", "multi_modal_data": {"image": […]}}``."""
Message = Mapping[str, Any]
"""``{"role": "user", "content": "…"}``; with images, ``content`` is a list of parts."""
_NO_TOKENS: Final = SamplingParams(max_tokens=1, seed=0)


class LoRARequest(msgspec.Struct, frozen=True):
    """The LoRA adapter that prompts are generated with, as at vLLM."""

    lora_name: str
    lora_int_id: int
    """Of no meaning here; vLLM knows adapters by it."""
    lora_path: str
    """Folder, or a hub id."""


class CompletionOutput(msgspec.Struct, kw_only=True):
    """One output for a prompt."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    """``stop`` or ``length``."""
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it."""
    logprobs: list[TokenLogprobs] | None = None
    """One for each of ``token_ids``, when requested."""


class RequestOutput(msgspec.Struct, kw_only=True):
    """A prompt and its outputs."""

    prompt: str | None
    """None when the prompt was token ids."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    draft_tokens: int = 0
    """Verified by speculative decoding, for all outputs."""
    accepted_tokens: int = 0
    """Those of them that are in the outputs."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One for each of ``prompt_token_ids``, None for the first, when requested."""


class LLM:
    """A model loaded into this process.

    Args:
        model: folder or Hugging Face hub id.
        revision: branch, tag or commit of a hub id.
        tokenizer_dir: folder of the tokenizer; the model's own by default (vLLM's name: ``tokenizer``).
        tokenizer_special_tokens: tokens to treat as special, too; ``NAME=TOKEN`` names a role as well.
        chat_template: a jinja file, or a template itself, that replaces the model's.
        seed: makes outputs repeat whose sampling parameters have no seed of their own.
        speculative: speculative decoding, as :class:`~blade_llm.config.SpeculativeConfig` or its fields (vLLM's name
            and fields: ``speculative_config``).
        mm_processor_kwargs: ``min_pixels`` and ``max_pixels`` of images, in place of the model's own.
        allowed_local_media_path: folders below which ``file:`` URLs of images may point; none may by default.
        allowed_media_domains: hosts that images may be fetched from; any with a public address by default.
        private_media_domains: hosts whose addresses may be private ones.
        config: fields of :class:`~blade_llm.config.EngineConfig` (``dtype``, ``max_model_len``,
            ``kv_cache_bytes``, ``num_threads``, …), or vLLM's names of them (``gpu_memory_utilization``, …).

    Raises:
        ModelFilesError, TokenizerFilesError, NotEnoughMemoryError: the message says what to change.
        ValueError: an argument of vLLM's that is refused here, or a value that is not taken; the message says what to
            do instead.
        TypeError: an unknown argument.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        revision: str | None = None,
        tokenizer_dir: str | Path | None = None,
        tokenizer: str | Path | None = None,
        tokenizer_special_tokens: Sequence[str] = (),
        chat_template: str | Path | None = None,
        seed: int | None = None,
        speculative: SpeculativeConfig | Mapping[str, Any] | None = None,
        speculative_config: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        allowed_local_media_path: str | Path | Sequence[str | Path] | None = None,
        allowed_media_domains: Sequence[str] | None = None,
        private_media_domains: Sequence[str] | None = None,
        **config: Any,
    ) -> None:
        if (dtype := config.get("dtype")) is not None:
            name = str(dtype).removeprefix("torch.")
            config["dtype"] = DTYPE_ALIASES.get(name, name)
        config, warnings = engine_fields(config)
        for warning in warnings:
            _log.warning("%s", warning)
        tokenizer_dir = tokenizer_dir or tokenizer
        self._seeds = None if seed is None else random.Random(seed)
        folder = resolve_model(str(model), revision=revision)
        model_config = read_model_config(folder, config.get("model_impl", "auto"), config.get("task", "generate"))
        if config.get("load_format", "auto") == "auto":
            ranks, experts = config.get("tensor_parallel_size", 1), config.get("enable_expert_parallel", False)
            checkpoint = open_checkpoint(folder, ranks, expert_parallel=experts)
            if problems := check_weights(checkpoint, model_config):
                raise ModelFilesError(f"{folder}: {'; '.join(problems)}")
        self.tokenizer = Tokenizer(Path(tokenizer_dir or folder), tokenizer_special_tokens)
        self.tokenizer.require_within(model_config.vocab_size)
        template = load_chat_template(self.tokenizer, None if chat_template is None else str(chat_template))
        self._chat_template = template
        eos = self.tokenizer.eos_token_id
        values = {
            "served_names": (folder.name,),
            "extra_eos_token_ids": () if eos is None else (eos,),
            "tokenizer_dir": None if tokenizer_dir is None else str(tokenizer_dir),
            "packed_cache_bytes": PACKED_CACHE_BYTES,
            **config,
        }
        values["speculative"] = speculative_of(speculative or speculative_config, resolve_model)
        if draft := draft_tokenizer_folder(values["speculative"]):
            require_same_tokens(self.tokenizer.vocabulary, Tokenizer(draft).vocabulary, draft)
        if values.get("nnodes", 1) != 1:
            raise ValueError("LLM is of one machine; leave nnodes out, or start blade_llm_server on each machine")
        engine = EngineConfig(model=str(folder), **values)
        sources = MediaSources.of(allowed_local_media_path, allowed_media_domains, private_media_domains)
        processor_kwargs = mm_processor_kwargs or {}
        serving = offline_serving(folder, model_config, sources, processor_kwargs, with_visual=engine.with_visual)
        self._images = OfflineImages(serving, self.tokenizer)
        self._core = _build_core(engine)
        self._vocab_size = model_config.vocab_size
        self._numbers = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Generate for one prompt or many, ``n`` times each, in one continuous batch; results keep the prompts' order.

        The ``n`` outputs share the prompt's part of the cache; those of a beam search come best first.
        ``lora_request``: the adapter of all prompts, or of each; with ``LLM(enable_lora=True)``.

        A prompt with images has the model's image token (``<|image_pad|>``, ``<IMG_CONTEXT>``) once for each of them.

        Raises ``ValueError`` for parameters or prompts that cannot work; nothing is generated then.
        """
        several = _as_prompts(prompts)
        written = [self._written(prompt, _place("prompt", at, len(several))) for at, prompt in enumerate(several)]
        return self._run(self._images.inserted(written), sampling_params, n, lora_request)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Generate for one conversation or many, rendered with the model's chat template.

        Images are parts of the user's messages and of tools' results, as a server takes them (``image_url``), or
        Pillow's: ``{"type": "image_pil", "image_pil": image}``. ``mm_processor_kwargs``: ``min_pixels`` and
        ``max_pixels`` of those that do not say it themselves.

        Raises ``ValueError`` as :meth:`generate`, when the model has no template, and
        :class:`~blade_llm.text.errors.ChatTemplateError` when the template refuses a conversation.
        """
        if self._chat_template is None:
            raise ValueError("this model has no chat template; give LLM(chat_template=FILE), or use generate()")
        template = self._chat_template
        several: Any = [messages] if messages and isinstance(messages[0], Mapping) else messages
        written = []
        for at, conversation in enumerate(several):
            where = _place("conversation", at, len(several))
            messages, pictures = self._images.of_conversation(conversation, mm_processor_kwargs or {}, where)
            text = template.render(messages)
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            written.append(WrittenPrompt(text, ids, pictures, where))
        return self._run(self._images.inserted(written), sampling_params, n, lora_request)

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, pooling: Literal["last", "mean", "cls"] = "last"
    ) -> list[list[float]]:
        """The hidden states of one prompt or many after the last norm: the last token's, the mean of all tokens', or
        the first token's (``cls``).

        They are not scaled to length 1. Raises ``ValueError`` for prompts that cannot work; nothing is computed then.
        """
        if pooling not in ("last", "mean", "cls"):
            raise ValueError(f"pooling is {pooling!r}; give 'last', 'mean' or 'cls'")
        several = _as_prompts(prompts)
        if any(isinstance(prompt, Mapping) for prompt in several):
            raise ValueError("embed() takes texts and token ids; images are not supported there")
        token_ids = [self._written(prompt).token_ids for prompt in several]
        for each in token_ids:
            self._check_tokens(each, [])
        states: dict[str, list[float]] = {}
        names = [f"offline.{next(self._numbers)}" for _ in token_ids]
        try:
            for name, each in zip(names, token_ids, strict=True):
                self._core.add(
                    GenerateRequest(request_id=name, prompt_token_ids=each, sampling=_NO_TOKENS, pooling=pooling)
                )
            while len(states) < len(names):
                for output in self._core.step():
                    assert output.embedding is not None
                    states[output.request_id] = np.frombuffer(output.embedding, dtype="<f4").tolist()
        except BaseException:
            self._core.abort(names)
            raise
        return [states[name] for name in names]

    def _run(
        self,
        prompts: Sequence[TokenPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        n: int,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params or SamplingParams()] * len(prompts)
        if n < 1:
            raise ValueError(f"n must be at least 1, not {n}")
        if len(sampling_params) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts but {len(sampling_params)} sampling parameters")
        sampling_params = [self._with_bad_words(params) for params in sampling_params]
        for prompt, params in zip(prompts, sampling_params, strict=True):
            self._check(prompt.token_ids, params)
        adapters = self._load_adapters(lora_request, len(prompts))
        results = [
            RequestOutput(prompt=prompt.text, prompt_token_ids=prompt.token_ids, outputs=[]) for prompt in prompts
        ]
        waiting: deque[tuple[RequestOutput, GenerateRequest]] = deque()
        for prompt, result, params, adapter in zip(prompts, results, sampling_params, adapters, strict=True):
            seeded = msgspec.structs.replace(params, seed=self._new_seed()) if params.seed is None else params
            names = [f"offline.{next(self._numbers)}" for _ in range(n)]
            request = GenerateRequest(
                request_id=names[0],
                sibling_ids=names[1:],
                prompt_token_ids=prompt.token_ids,
                sampling=seeded,
                adapter=adapter,
                images=prompt.images,
                pixels=prompt.pixels,
            )
            self._core.check(request)
            waiting.append((result, request))
        running: dict[str, _PendingOutput] = {}
        try:
            while running or waiting:
                while waiting and self._add(waiting[0][1], alone=not running):
                    result, request = waiting.popleft()
                    for sample, name in enumerate(request.all_request_ids):
                        text = OutputText(self.tokenizer, result.prompt_token_ids, request.sampling)
                        with_logprobs = request.sampling.logprobs is not None
                        running[name] = _PendingOutput(result, sample, text, with_logprobs)
                for output in self._core.step():
                    pending = running.get(output.request_id)
                    if pending is None:  # a device that is ahead may deliver more of an output that is complete
                        continue
                    if pending.take(output):
                        del running[output.request_id]
                        if output.finish_reason is None:
                            self._core.abort([output.request_id])
        except BaseException:  # an interrupt included: leave nothing behind for the next call
            self._core.abort(list(running))
            raise
        return results

    def _written(self, prompt: Prompt, where: str = "") -> WrittenPrompt:
        if isinstance(prompt, Mapping):
            return self._images.of_prompt(prompt, self.tokenizer, where)
        if isinstance(prompt, str):
            return WrittenPrompt(prompt, self.tokenizer.encode(prompt), where=where)
        return WrittenPrompt(None, list(prompt), where=where)

    def _add(self, request: GenerateRequest, *, alone: bool) -> bool:
        """Add a request; False: the engine has no room for it beside others, as for its images' pixels."""
        try:
            self._core.add(request)
        except RequestRefusedError as refused:
            if alone or refused.error.kind != "overloaded":
                raise
            return False
        request.pixels.clear()  # the engine has them until they are encoded
        return True

    def _load_adapters(self, wanted: LoRARequest | Sequence[LoRARequest | None] | None, count: int) -> list[str]:
        """The name of each prompt's adapter, empty for none; all are loaded. Raises ``ValueError``."""
        several = [wanted] * count if wanted is None or isinstance(wanted, LoRARequest) else list(wanted)
        if len(several) != count:
            raise ValueError(f"{count} prompts but {len(several)} lora_request")
        for each in {each.lora_name: each for each in several if each is not None}.values():
            replies: list[AdapterReply] = []
            self._core.change_adapters(LoadAdapter(call_id=0, name=each.lora_name, path=each.lora_path), replies.append)
            while not replies:
                self._core.step()
            if replies[0].error is not None:
                raise ValueError(str(replies[0].error))
        return ["" if each is None else each.lora_name for each in several]

    def _new_seed(self) -> int:
        return secrets.randbits(63) if self._seeds is None else self._seeds.getrandbits(63)

    def _with_bad_words(self, params: SamplingParams) -> SamplingParams:
        """``params`` with the tokens of its bad words."""
        if not params.bad_words:
            return params
        sequences = word_sequences(params.bad_words, partial(self.tokenizer.encode, add_special_tokens=False))
        return msgspec.structs.replace(params, bad_words_token_ids=(*params.bad_words_token_ids, *sequences))

    def _check(self, token_ids: list[int], params: SamplingParams) -> None:
        if problem := params.problem():
            raise ValueError(" ".join(problem))
        of_params = [*params.stop_token_ids, *params.logit_bias, *(params.allowed_token_ids or ())]
        self._check_tokens(token_ids, [*of_params, *itertools.chain.from_iterable(params.bad_words_token_ids)])
        limit = self._core.info.max_model_len
        if len(token_ids) + params.max_tokens > limit:
            raise ValueError(
                f"a prompt has {len(token_ids)} tokens and max_tokens asks for {params.max_tokens}: more than "
                f"max_model_len {limit}; shorten the prompt or lower max_tokens"
            )

    def _check_tokens(self, prompt: list[int], others: list[int]) -> None:
        if not prompt:
            raise ValueError("a prompt is empty")
        if wrong := [token for token in (*prompt, *others) if not 0 <= token < self._vocab_size]:
            raise ValueError(f"token id {wrong[0]} is not between 0 and {self._vocab_size - 1}")


class _PendingOutput:
    """One output while it grows."""

    def __init__(self, result: RequestOutput, index: int, text: OutputText, with_logprobs: bool) -> None:
        self._result = result
        self._text = text
        self._pieces: list[str] = []
        self._output = CompletionOutput(
            index=index, text="", token_ids=[], finish_reason="", logprobs=[] if with_logprobs else None
        )
        result.outputs.append(self._output)

    def take(self, step: EngineOutput) -> bool:
        """Take one step's tokens; whether the output is complete."""
        output = self._output
        if step.error is not None:
            raise ValueError(str(step.error))
        if step.cached_tokens and output.index == 0:
            self._result.cached_tokens = step.cached_tokens
        self._result.draft_tokens += step.draft_tokens
        self._result.accepted_tokens += step.accepted_tokens
        if step.prompt_logprobs is not None:
            self._result.prompt_logprobs = step.prompt_logprobs
        for position, token_id in enumerate(step.token_ids):
            output.token_ids.append(token_id)
            if output.logprobs is not None and step.logprobs is not None:
                output.logprobs.append(step.logprobs[position])
            self._pieces.append(self._text.add(token_id))
            if self._text.stopped:
                break
        if self._text.stopped:
            output.finish_reason, output.stop_reason = "stop", self._text.stop_string
        elif step.finish_reason is not None:
            output.finish_reason, output.stop_reason = step.finish_reason, step.stop_token_id
        else:
            return False
        output.text = "".join([*self._pieces, self._text.finish()])
        if self._text.stopped:
            output.finish_reason, output.stop_reason = "stop", self._text.stop_string
        return True


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A single prompt becomes a list of one."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    several: list[Any] = list(prompts)
    return [several] if several and isinstance(several[0], int) else several


def _place(kind: str, index: int, count: int) -> str:
    """What errors about one of several begin with."""
    return f"{kind} {index + 1} of {count}: " if count > 1 else ""


def _build_core(config: EngineConfig) -> EngineCore:
    from blade_llm.engine.build import build_core  # imports torch

    return build_core(config)
