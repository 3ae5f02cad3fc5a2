"""A scheduler without a device: the test delivers what it likes for each plan. Invariants hold after every call."""

from __future__ import annotations

from engine_support.sched_invariants import check_invariants
from engine_support.scripted_drafter import ScriptedDrafter

from blade_llm.cache.manager import KVCacheManager
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.images.encoding import ImageEncoding
from blade_llm.scheduling.limits import SchedulerConfig
from blade_llm.scheduling.output import RequestOutput
from blade_llm.scheduling.plan import StepPlan, StepResult
from blade_llm.scheduling.request import Request
from blade_llm.scheduling.scheduler import Scheduler

EOS = 2


def scheduler_of(
    *,
    blocks: int = 64,
    slots: int = 8,
    budget: int = 256,
    max_model_len: int = 512,
    prefix_cache: bool = True,
    max_draft_tokens: int = 0,
    pipeline_stages: int = 1,
    max_adapters: int = 0,
    images: ImageEncoding | None = None,
) -> Scheduler:
    config = SchedulerConfig(
        max_num_seqs=slots,
        max_batch_tokens=budget,
        max_model_len=max_model_len,
        eos_token_ids=(EOS,),
        pipeline_stages=pipeline_stages,
        max_adapters=max_adapters,
    )
    drafter = ScriptedDrafter(max_draft_tokens) if max_draft_tokens else None
    cache = KVCacheManager(blocks, enable_prefix_cache=prefix_cache)
    return Scheduler(config, cache, drafter=drafter, images=images)


def add(
    scheduler: Scheduler, name: str, prompt: int, max_tokens: int = 100, priority: int = 0, **sampling: object
) -> None:
    tokens = [10 + sum(map(ord, name)) + i for i in range(prompt)]
    params = SamplingParams(max_tokens=max_tokens, temperature=0, **sampling)  # type: ignore[arg-type]
    scheduler.add(Request(name, tokens, params, priority=priority))


def plan_of(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule()
    assert plan is not None
    check_invariants(scheduler)
    return plan


def deliver(scheduler: Scheduler, plan: StepPlan, *tokens: list[int]) -> list[RequestOutput]:
    """Deliver ``tokens`` for the sampling chunks of a plan; one token 5 each when none are given."""
    sampled = list(tokens) or [[5] for chunk in plan.chunks if chunk.sample]
    outputs = scheduler.update(plan, StepResult(sampled, [None] * len(sampled)))
    check_invariants(scheduler)
    return outputs


def chunks(plan: StepPlan) -> dict[str, int]:
    return {chunk.request_id: chunk.count for chunk in plan.chunks}


def step(scheduler: Scheduler) -> list[RequestOutput]:
    return deliver(scheduler, plan_of(scheduler))


def sample_and_return(scheduler: Scheduler) -> StepPlan:
    plan = plan_of(scheduler)
    deliver(scheduler, plan)
    return plan
