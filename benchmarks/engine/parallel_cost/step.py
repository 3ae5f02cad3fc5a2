"""Seconds of a step, of a token and of a prompt, and what they are bound by."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.engine.parallel_cost.collectives import all_gather, nccl_all_reduce, own_all_reduce, send
from benchmarks.engine.parallel_cost.hardware import Gpu, Measured, Network
from benchmarks.engine.parallel_cost.work import RankWork, rank_work
from blade_llm.parallel.layout import RankLayout

CHUNK = 2048
"""Tokens of a step at most (``--ragged_flash_max_batch_tokens``)."""
MEMORY_SHARE = 0.9
"""What weights and KV cache may take of a GPU."""


@dataclass(frozen=True)
class Setting:
    """Where and how a model runs."""

    model: str
    layout: RankLayout
    gpu: Gpu
    network: Network = field(default_factory=Network)
    weight_bytes: float = 2.0
    """Of one weight of a matrix; products are computed in bf16."""
    own_kernels: bool = False
    """All-reduces of one machine are one-shot and two-shot; else NCCL's. Both in bf16."""
    measured: Measured = field(default_factory=Measured.read)

    @property
    def work(self) -> RankWork:
        return rank_work(self.model, self.layout.tensor)

    @property
    def machines_of_a_stage(self) -> int:
        """How many one tensor-parallel group is on."""
        return max(1, self.layout.tensor // self.layout.ranks_per_node)

    def fits(self, tokens: int) -> bool:
        """Whether a GPU holds its weights and so many tokens of context."""
        weights = self.work.matrices * self.weight_bytes + self.work.others * 2
        return (weights + tokens * self.work.kv * 2) / self.layout.pipeline <= MEMORY_SHARE * self.gpu.memory_bytes


@dataclass(frozen=True)
class Cost:
    """Seconds of one step in one pipeline stage."""

    weights: float
    kv: float
    products: float
    collectives: float
    gaps: float
    """Between kernels."""
    host: float
    transfer: float
    """Of hidden states to the next stage."""

    @property
    def device(self) -> float:
        """Memory is read while products are computed."""
        return max(self.weights + self.kv, self.products) + self.collectives + self.gaps

    @property
    def step(self) -> float:
        """The host plans the next step meanwhile."""
        return max(self.device, self.host)

    @property
    def bound(self) -> str:
        """The largest term."""
        terms = {
            "weights": self.weights,
            "KV cache": self.kv,
            "products": self.products,
            "all-reduces": self.collectives,
            "gaps": self.gaps,
            "host": self.host,
            "transfer": self.transfer,
        }
        if self.products < self.weights + self.kv:
            del terms["products"]
        else:
            del terms["weights"], terms["KV cache"]
        return max(terms, key=lambda name: terms[name])


def stage_cost(setting: Setting, new: int, sampled: int, context: float, pairs: float) -> Cost:
    """Of a step of ``new`` tokens, ``sampled`` of them with logits, that reads ``context`` tokens of the KV cache and
    has ``pairs`` of a query and a token that it sees; of an average stage."""
    work, gpu, measured, layout = setting.work, setting.gpu, setting.measured, setting.layout
    stages, ranks, machines = layout.pipeline, layout.tensor, setting.machines_of_a_stage
    bandwidth, flops = gpu.bandwidth * measured.bandwidth_share, gpu.flops * measured.flops_share
    operations = 2 * (work.per_token - work.head) * new + 2 * work.head * sampled + work.attention * pairs
    elements = new * work.hidden
    each = nccl_all_reduce(2 * elements, ranks, gpu, setting.network, machines)
    if setting.own_kernels and machines == 1:
        each = min(each, own_all_reduce(2 * elements, ranks, gpu))
    logits = all_gather(2 * sampled * -(-work.vocab // ranks), ranks, gpu, setting.network, machines)
    return Cost(
        weights=work.read(new) * setting.weight_bytes / bandwidth / stages,
        kv=context * work.kv * 2 / bandwidth / stages,
        products=operations / flops / stages,
        collectives=((2 * work.layers + 1) * each + logits) / stages,
        gaps=work.layers * measured.layer_gap / stages,
        host=measured.host_64 * max(1.0, new / 64 if new == sampled else 1.0),
        transfer=send(2 * elements, setting.network) if stages > 1 else 0.0,
    )


@dataclass(frozen=True)
class Decode:
    """Of requests that each get a token."""

    batch: int
    cost: Cost
    """Of one micro-batch in one stage."""
    tpot: float
    """Seconds between two tokens of a request."""
    bubble: float
    """Share of its time that a stage has nothing to do."""

    @property
    def throughput(self) -> float:
        """Tokens a second, of all requests."""
        return self.batch / self.tpot


def decode(setting: Setting, batch: int, context: int) -> Decode:
    """As many micro-batches as stages are in flight, so a token takes as long as all stages one after the other."""
    stages = setting.layout.pipeline
    micro = -(-batch // stages)
    cost = stage_cost(setting, micro, micro, micro * context, micro * context)
    in_flight = min(stages, batch)
    tpot = max(stages * (cost.device + cost.transfer), in_flight * cost.host)
    return Decode(batch, cost, tpot, 1 - in_flight * cost.device / tpot)


@dataclass(frozen=True)
class Prefill:
    """Of one prompt."""

    cost: Cost
    """Of the last chunk, which sees most, in one stage."""
    ttft: float
    bubble: float


def prefill(setting: Setting, tokens: int) -> Prefill:
    """Chunks follow each other through the stages; m of them take m + stages - 1 times a stage (GPipe: Huang et al.,
    arXiv 1811.06965, whose bubbles these are)."""
    stages = setting.layout.pipeline
    costs = []
    for start in range(0, tokens, CHUNK):
        new = min(CHUNK, tokens - start)
        last = start + new == tokens
        costs.append(stage_cost(setting, new, int(last), start + new, new * start + new * (new + 1) / 2))
    times = [cost.step + cost.transfer for cost in costs]
    ttft = sum(times) + (stages - 1) * max(times)
    return Prefill(costs[-1], ttft, 1 - sum(times) / ttft)
