"""Rollouts against a small imitation of the Deployment controller, driven at random."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from blade_operator.rollout import RevisionPods, sizes


@dataclass
class Pod:
    revision: str
    ready: bool = False
    leaving: bool = False


@dataclass
class World:
    """Deployments by revision and the pods their controllers make; nothing happens unless told to."""

    broken: set[str] = field(default_factory=set)
    wanted: dict[str, int] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)
    current: str = "r0"

    def look(self, revision: str) -> RevisionPods:
        mine = [pod for pod in self.pods if pod.revision == revision]
        leaving = sum(pod.leaving for pod in mine)
        ready = sum(pod.ready and not pod.leaving for pod in mine)
        return RevisionPods(revision, self.wanted.get(revision, 0), len(mine) - leaving, leaving, ready)

    def plan(self, replicas: int, surge: int, unavailable: int) -> dict[str, int]:
        others = [self.look(revision) for revision in self.wanted if revision != self.current]
        return sizes(replicas, self.look(self.current), others, max_surge=surge, max_unavailable=unavailable)

    def control(self) -> None:
        """One round of every Deployment controller: victims that do not answer first."""
        for revision, count in self.wanted.items():
            mine = [pod for pod in self.pods if pod.revision == revision and not pod.leaving]
            for pod in sorted(mine, key=lambda pod: pod.ready)[: max(0, len(mine) - count)]:
                pod.leaving = True
            self.pods += [Pod(revision) for _ in range(count - len(mine))]

    def collect(self) -> None:
        """Leaving pods are gone; Deployments of size 0 without pods are deleted."""
        self.pods = [pod for pod in self.pods if not pod.leaving]
        self.wanted = {
            revision: count for revision, count in self.wanted.items() if count or not self.look(revision).gone
        }

    def start(self) -> None:
        for pod in self.pods:
            pod.ready = pod.ready or (pod.revision not in self.broken and not pod.leaving)

    @property
    def available(self) -> int:
        return sum(pod.ready and not pod.leaving for pod in self.pods)


def settle(world: World, replicas: int, surge: int, unavailable: int) -> None:
    for _ in range(12 * (replicas + len(world.pods) + len(world.wanted) + 2)):
        world.wanted |= world.plan(replicas, surge, unavailable)
        world.control()
        world.collect()
        world.start()


limits = st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(0, 5), limits)
def test_capacity_and_ceiling_hold_in_any_order_of_events_and_the_rollout_ends(
    data: st.DataObject, replicas: int, limit: tuple[int, int]
) -> None:
    surge, unavailable = limit
    world = World()
    settle(world, replicas, surge, unavailable)
    assert world.available == replicas
    for step in range(data.draw(st.integers(1, 40), label="steps")):
        event = data.draw(
            st.sampled_from(["plan", "plan", "plan", "control", "collect", "start one", "new", "break", "back"])
        )
        match event:
            case "plan":
                before = world.available
                starting = [pod for pod in world.pods if not pod.leaving]
                planned = world.plan(replicas, surge, unavailable)
                grown = any(count > world.wanted.get(revision, 0) for revision, count in planned.items())
                world.wanted |= planned
                # As if the controllers carried it out at once, and nothing that starts became ready.
                after = dataclasses.replace(world, pods=[dataclasses.replace(pod) for pod in world.pods])
                after.control()
                assert after.available >= min(before, replicas - unavailable), (planned, starting)
                if grown:
                    assert len(after.pods) <= replicas + surge
            case "control":
                world.control()
            case "collect":
                world.collect()
            case "start one":
                waiting = [pod for pod in world.pods if not pod.ready and pod.revision not in world.broken]
                if waiting:
                    data.draw(st.sampled_from(waiting)).ready = True
            case "new":
                world.current = f"r{step + 1}"
            case "break":
                world.broken.add(world.current)
            case "back":
                world.current = data.draw(st.sampled_from(sorted({*world.wanted, world.current})))
    world.broken.clear()
    settle(world, replicas, surge, unavailable)
    assert world.available == replicas
    assert world.wanted == ({world.current: replicas} if replicas else {})
    assert {revision: count for revision, count in world.plan(replicas, surge, unavailable).items() if count} == (
        world.wanted
    )


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), limits)
def test_a_revision_that_never_becomes_ready_leaves_the_old_one_answering(
    replicas: int, limit: tuple[int, int]
) -> None:
    surge, unavailable = limit
    world = World()
    settle(world, replicas, surge, unavailable)
    world.current = "bad"
    world.broken.add("bad")
    settle(world, replicas, surge, unavailable)
    assert world.available >= replicas - unavailable
    # A reboot in the middle: nobody answers for a while, and the old ones must still not be given up.
    for pod in world.pods:
        pod.ready = False
    world.wanted |= world.plan(replicas, surge, unavailable)
    world.control()
    world.start()
    assert world.available >= replicas - unavailable
    world.current = "r0"
    settle(world, replicas, surge, unavailable)
    assert world.wanted == {"r0": replicas}
    assert world.available == replicas


@given(st.integers(0, 6), st.integers(0, 6), limits)
def test_scaling_one_revision_is_immediate(before: int, after: int, limit: tuple[int, int]) -> None:
    surge, unavailable = limit
    world = World()
    settle(world, before, surge, unavailable)
    planned = world.plan(after, surge, unavailable)
    assert planned == {"r0": after}


def test_on_a_machine_without_room_a_new_engine_starts_only_when_an_old_one_is_really_gone() -> None:
    old = RevisionPods("old", wanted=2, staying=2, leaving=0, ready=2)
    new = RevisionPods("new", wanted=0, staying=0, leaving=0, ready=0)
    assert sizes(2, new, [old], max_surge=0, max_unavailable=1) == {"new": 0, "old": 1}
    leaving = RevisionPods("old", wanted=1, staying=1, leaving=1, ready=1)
    assert sizes(2, new, [leaving], max_surge=0, max_unavailable=1) == {"new": 0, "old": 1}
    gone = RevisionPods("old", wanted=1, staying=1, leaving=0, ready=1)
    assert sizes(2, new, [gone], max_surge=0, max_unavailable=1) == {"new": 1, "old": 1}


def test_pods_that_leave_count_beside_those_about_to_replace_them() -> None:
    # Found at random: a rollback looked twice before the controller had made the first new pod.
    back = RevisionPods("r0", wanted=1, staying=0, leaving=1, ready=0)
    other = RevisionPods("r1", wanted=1, staying=1, leaving=0, ready=1)
    assert sizes(2, back, [other], max_surge=1, max_unavailable=1) == {"r0": 1, "r1": 1}


@given(st.integers(0, 3), st.integers(1, 4), limits)
def test_a_deployment_lowered_by_hand_gets_its_size_back_before_it_loses_a_pod(
    lowered: int, replicas: int, limit: tuple[int, int]
) -> None:
    surge, unavailable = limit
    world = World()
    settle(world, replicas, surge, unavailable)
    world.wanted["r0"] = min(lowered, replicas)
    assert world.plan(replicas, surge, unavailable) == {"r0": replicas}


@given(st.integers(0, 3), st.integers(1, 4), limits)
def test_a_deployment_lowered_by_hand_comes_back_however_late_it_is_seen(
    lowered: int, replicas: int, limit: tuple[int, int]
) -> None:
    surge, unavailable = limit
    world = World()
    settle(world, replicas, surge, unavailable)
    world.wanted["r0"] = min(lowered, replicas)
    world.control()
    if surge:
        assert world.plan(replicas, surge, unavailable)["r0"] > world.wanted["r0"] or lowered >= replicas
    settle(world, replicas, surge, unavailable)
    assert world.wanted == {"r0": replicas}
    assert world.available == replicas
