"""How well prompts meet their caches, in simulated fleets: figures that a change of the scores must not make worse.

The workloads are the benchmark's: 64 groups of prompts of 17 blocks, four engines that cache 400 blocks each.
"""

import random
import statistics
from collections.abc import Callable

import pytest
from router_support.simulation import Fleet, Result, uniform, zipf

from blade_protocol.routing import PolicyName
from blade_router.policies import Policy, PolicyOptions, make_policy
from blade_router.policies.prefix_cache.prefix_index import PrefixIndex

SEEDS = range(3)


def routers(name: PolicyName = "auto", *, seed: int, replicas: int = 1) -> Callable[[], Policy]:
    seeds = random.Random(seed)

    def make() -> Policy:
        rng = random.Random(seeds.random())
        return make_policy(name, PolicyOptions(index=PrefixIndex(), rng=rng, replicas=lambda: replicas))

    return make


def queueing(name: PolicyName = "auto", *, seed: int) -> Fleet:
    """Engines that compute prompts one after another."""
    return Fleet(routers(name, seed=seed), serial=True, block_seconds=0.0015)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_client_after_another(seed: int) -> None:
    result = Fleet(routers(seed=seed)).run(uniform(seed), count=256, clients=1)
    assert result.imbalance <= 1.15


@pytest.mark.parametrize("whole", [False, True], ids=["streams", "unary"])
@pytest.mark.parametrize("seed", SEEDS)
def test_prompts_meet_their_caches(seed: int, whole: bool) -> None:
    result = Fleet(routers(seed=seed)).run(uniform(seed), count=2000, clients=32, whole=whole)
    assert result.hit_rate >= 0.96
    assert result.imbalance <= 1.10


@pytest.mark.parametrize("seed", SEEDS)
def test_also_after_a_warm_up_by_one_client(seed: int) -> None:
    fleet = Fleet(routers(seed=seed))
    fleet.run(uniform(seed), count=256, clients=1)
    result = fleet.run(uniform(seed + 100), count=2000, clients=32)
    assert result.hit_rate >= 0.98
    assert result.imbalance <= 1.10


@pytest.mark.parametrize("seed", SEEDS)
def test_queues_stay_short(seed: int) -> None:
    result = queueing(seed=seed).run(uniform(seed), count=3000, clients=48)
    assert result.rate >= 1700
    assert result.p99 <= 0.2


@pytest.mark.parametrize("seed", SEEDS)
def test_popular_prompts_do_not_make_one_engine_busy(seed: int) -> None:
    result = queueing(seed=seed).run(zipf(seed), count=3000, clients=48)
    assert result.rate >= 1750
    assert result.p99 <= 0.16
    assert result.imbalance <= 1.2


def test_the_score_is_worth_it() -> None:
    def rate(name: PolicyName) -> float:
        return queueing(name, seed=1).run(uniform(1), count=1500, clients=48).rate

    auto = rate("auto")
    assert auto > 1.5 * rate("prefix")
    assert auto > 4 * rate("least-request")


def test_two_routers_share_homes() -> None:
    def hit_rate(replicas: int) -> float:
        fleet = Fleet(routers(seed=1, replicas=replicas), routers=2)
        return fleet.run(uniform(1), count=2000, clients=32).hit_rate

    assert hit_rate(2) >= 0.94 > hit_rate(1)


@pytest.mark.parametrize("groups", [96, 160])
def test_caches_too_small_for_all_prompts(groups: int) -> None:
    """No policy can hit always; learning from cached_tokens must not make it worse."""

    def average(reports: bool) -> Result:
        runs = [
            Fleet(routers(seed=seed)).run(uniform(seed, groups), count=3000, clients=32, reports=reports)
            for seed in SEEDS
        ]
        return min(runs, key=lambda run: abs(run.hit_rate - statistics.median(each.hit_rate for each in runs)))

    listening, deaf = average(True), average(False)
    # Which prompts are moved to another engine is chaotic: by seed the hits are 0.01 to 0.032 fewer.
    assert listening.hit_rate >= deaf.hit_rate - 0.04
    assert listening.imbalance <= 1.10
