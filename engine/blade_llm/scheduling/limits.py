"""Limits of a step and of a request, and the refusal of requests that can never run within them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from blade_llm.cache.manager import KVCacheManager
from blade_llm.scheduling.output import RequestError
from blade_llm.scheduling.request import Request, RequestRefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of every step."""

    max_num_seqs: int
    """Slots: requests that run at once."""
    max_batch_tokens: int
    """Tokens a step computes at most."""
    max_model_len: int
    """Prompt and output tokens of one request."""
    eos_token_ids: tuple[int, ...] = ()
    generates: bool = True
    """False: the model has no output matrix, and every request wants a pooled state."""
    whole_prompts: bool = False
    """A step computes a prompt wholly or not at all, as an encoder needs it. No prompt may be longer than
    ``max_batch_tokens`` then, nothing of it may be cached, and nothing is generated."""
    max_beams: int | None = None
    """Beams of one search; None: as many as there are slots."""
    max_samples: int | None = None
    """Samples of one prompt; None: any number."""
    max_adapters: int = 0
    """LoRA adapters that one step can use."""
    pipeline_stages: int = 1
    """Beyond 1 so many steps are in flight, with different decodes in each: a token reaches the first stage only
    after its step is delivered."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_batch_tokens", "max_model_len", "pipeline_stages"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.whole_prompts and (self.generates or self.max_model_len > self.max_batch_tokens):
            raise ValueError("whole prompts need generates False and a max_model_len of at most max_batch_tokens")


_MIN_SAMPLES: Final = 16


def shared_widths(max_num_seqs: int) -> tuple[int, int]:
    """The most beams and the most samples of one request where it must leave slots to others: half of them.

    Beams need their slots together, and there are always two. Samples can wait, so there may always be 16.
    """
    half = max_num_seqs // 2
    return max(2, half), max(_MIN_SAMPLES, half)


def check_samples(count: int, config: SchedulerConfig) -> None:
    """Check that one prompt may have ``count`` samples.

    Raises:
        RequestRefusedError: it may not.
    """
    if config.max_samples is not None and count > config.max_samples:
        message = (
            f"is {count}, but one request may have {config.max_samples} samples on an engine of {config.max_num_seqs} "
            f"slots; lower it to at most {config.max_samples}, or give the engine a larger --max_num_seqs"
        )
        raise RequestRefusedError(RequestError(field="n", message=message))


def check_beams(request: Request, total: int, config: SchedulerConfig, cache: KVCacheManager) -> None:
    """Check that a beam search fits into the limits; ``total``: see :func:`max_total_tokens`.

    Raises:
        RequestRefusedError: the beam search cannot run within the engine's limits, or not with the request's other
        parameters.
    """
    sampling = request.sampling
    width, outputs = sampling.beam_width, len(request.output_ids)
    if width < 2:
        raise _beam_width(f"is {width}; give at least 2, or 0 for no beam search")
    if sampling.grammar_spec is not None:
        raise _beam_width("does not go together with a structure; leave out one of them")
    if request.pooling:
        raise _beam_width("does not go together with pooling; leave out one of them")
    for name, given in (
        ("logit_bias", sampling.logit_bias),
        ("bad_words", sampling.bad_words_token_ids),
        ("allowed_token_ids", sampling.allowed_token_ids),
    ):
        if given:
            raise _beam_width(f"does not go together with {name}; leave out one of them")
    if outputs > width:
        raise _beam_width(f"is {width}, but n asks for {outputs} answers; raise it to {outputs}")
    for name, limit in (("max_num_seqs", config.max_num_seqs), ("max_batch_tokens", config.max_batch_tokens)):
        if width > limit:
            raise _beam_width(f"is {width}, but {name} is {limit}; lower it to at most {limit}")
    if config.max_beams is not None and width > config.max_beams:
        raise _beam_width(
            f"is {width}, but one request may have {config.max_beams} beams on an engine of {config.max_num_seqs} "
            f"slots; lower it to at most {config.max_beams}, or give the engine a larger --max_num_seqs"
        )
    shared = request.num_prompt_tokens // cache.block_size
    blocks = shared + width * (cache.blocks_for(total - 1) - shared)
    if blocks > cache.num_blocks:
        raise _beam_width(
            f"{width} with {request.num_prompt_tokens} prompt tokens and up to "
            f"{total - request.num_prompt_tokens} output tokens may need {blocks} KV blocks, but there are "
            f"{cache.num_blocks}; lower beam_width or max_tokens, or give the engine a larger KV cache"
        )


def _beam_width(message: str) -> RequestRefusedError:
    return RequestRefusedError(RequestError(field="beam_width", message=message))


def check_output(request: Request) -> None:
    """Check that the output that ``request`` came with can go on; needs its ``max_total`` and ``stop_ids``.

    Raises:
        RequestRefusedError: it is as long as it may get, or goes on after its end.
    """
    given = request.output_token_ids
    room = request.max_total - request.num_prompt_tokens
    if len(given) >= room:
        raise RequestRefusedError(
            f"output_token_ids has {len(given)} tokens, but the answer may have {room}; send fewer than that"
        )
    early = next((index for index, token in enumerate(given[:-1]) if token in request.stop_ids), None)
    if early is not None:
        raise RequestRefusedError(
            f"output_token_ids goes on after token {given[early]} at index {early}, which ends an answer; send less"
        )


def max_total_tokens(request: Request, config: SchedulerConfig, cache: KVCacheManager) -> int:
    """The longest that prompt and output of a request may get together. Without output the prompt may fill it all.

    Raises:
        RequestRefusedError: it has no prompt, or is too long for the model, or could outgrow the whole KV cache.
    """
    prompt, limit = request.num_prompt_tokens, config.max_model_len
    if not (config.generates or request.pooling):
        raise RequestRefusedError(
            "this engine generates no text (its task is embed or score); start it with task generate"
        )
    if prompt == 0:
        raise RequestRefusedError("the prompt has no tokens; send at least one")
    if request.pooling and prompt <= limit:
        if cache.blocks_for(prompt) > cache.num_blocks:
            raise RequestRefusedError(
                f"{prompt} prompt tokens do not fit into the KV cache, which holds "
                f"{cache.num_blocks * cache.block_size} tokens; shorten it, or give the engine a larger KV cache"
            )
        return prompt
    if prompt >= limit:
        raise RequestRefusedError(
            f"the prompt has {prompt} tokens, but prompt and output together may have {limit}; "
            f"shorten the prompt to at most {limit - 1} tokens"
        )
    total = min(prompt + request.sampling.max_tokens, limit)
    capacity = cache.num_blocks * cache.block_size + 1  # the last token is sampled, but not computed
    if total > capacity:
        advice = f"lower max_tokens to at most {capacity - prompt}" if prompt < capacity else "shorten the prompt"
        raise RequestRefusedError(
            f"{prompt} prompt tokens and up to {total - prompt} output tokens do not fit into the KV cache, "
            f"which holds {capacity - 1} tokens; {advice}, or give the engine a larger KV cache"
        )
    return total
