"""Rolling updates against a fake Deployment controller, driven at random."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from blade_operator.reconcile.rollout import RevisionPods, held_counts, replica_counts


@dataclass
class Pod:
    revision: str
    ready: bool = False
    terminating: bool = False


@dataclass
class World:
    """Deployments by revision and the pods their controllers create; nothing happens unless a method is called."""

    broken: set[str] = field(default_factory=set)
    desired: dict[str, int] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)
    current: str = "r0"

    def observe(self, revision: str) -> RevisionPods:
        mine = [pod for pod in self.pods if pod.revision == revision]
        terminating = sum(pod.terminating for pod in mine)
        ready = sum(pod.ready and not pod.terminating for pod in mine)
        return RevisionPods(revision, self.desired.get(revision, 0), len(mine) - terminating, terminating, ready)

    def plan(self, replicas: int, surge: int, unavailable: int) -> dict[str, int]:
        others = [self.observe(revision) for revision in self.desired if revision != self.current]
        return replica_counts(
            replicas, self.observe(self.current), others, max_surge=surge, max_unavailable=unavailable
        )

    def hold(self, replicas: int, surge: int) -> dict[str, int]:
        others = [self.observe(revision) for revision in self.desired if revision != self.current]
        return held_counts(replicas, self.observe(self.current), others, max_surge=surge)

    def run_controllers(self) -> None:
        """One round of every Deployment controller: pods that are not ready are deleted first."""
        for revision, count in self.desired.items():
            mine = [pod for pod in self.pods if pod.revision == revision and not pod.terminating]
            for pod in sorted(mine, key=lambda pod: pod.ready)[: max(0, len(mine) - count)]:
                pod.terminating = True
            self.pods += [Pod(revision) for _ in range(count - len(mine))]

    def remove_terminating_pods(self) -> None:
        """Remove terminating pods, and delete Deployments of size 0 without pods."""
        self.pods = [pod for pod in self.pods if not pod.terminating]
        self.desired = {
            revision: count for revision, count in self.desired.items() if count or not self.observe(revision).gone
        }

    def start(self) -> None:
        for pod in self.pods:
            pod.ready = pod.ready or (pod.revision not in self.broken and not pod.terminating)

    @property
    def available(self) -> int:
        return sum(pod.ready and not pod.terminating for pod in self.pods)


def converge(world: World, replicas: int, surge: int, unavailable: int) -> None:
    for _ in range(12 * (replicas + len(world.pods) + len(world.desired) + 2)):
        world.desired |= world.plan(replicas, surge, unavailable)
        world.run_controllers()
        world.remove_terminating_pods()
        world.start()


limits = st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(0, 5), limits)
def test_capacity_and_ceiling_hold_in_any_order_of_events_and_the_rollout_ends(
    data: st.DataObject, replicas: int, limit: tuple[int, int]
) -> None:
    surge, unavailable = limit
    world = World()
    converge(world, replicas, surge, unavailable)
    assert world.available == replicas
    for step in range(data.draw(st.integers(1, 40), label="steps")):
        event = data.draw(
            st.sampled_from(["plan", "plan", "plan", "control", "collect", "start one", "new", "break", "back"])
        )
        match event:
            case "plan":
                before = world.available
                starting = [pod for pod in world.pods if not pod.terminating]
                planned = world.plan(replicas, surge, unavailable)
                grown = any(count > world.desired.get(revision, 0) for revision, count in planned.items())
                world.desired |= planned
                # As if the controllers acted at once, and no starting pod became ready.
                after = dataclasses.replace(world, pods=[dataclasses.replace(pod) for pod in world.pods])
                after.run_controllers()
                assert after.available >= min(before, replicas - unavailable), (planned, starting)
                if grown:
                    assert len(after.pods) <= replicas + surge
            case "control":
                world.run_controllers()
            case "collect":
                world.remove_terminating_pods()
            case "start one":
                waiting = [pod for pod in world.pods if not pod.ready and pod.revision not in world.broken]
                if waiting:
                    data.draw(st.sampled_from(waiting)).ready = True
            case "new":
                world.current = f"r{step + 1}"
            case "break":
                world.broken.add(world.current)
            case "back":
                world.current = data.draw(st.sampled_from(sorted({*world.desired, world.current})))
    world.broken.clear()
    converge(world, replicas, surge, unavailable)
    assert world.available == replicas
    assert world.desired == ({world.current: replicas} if replicas else {})
    assert {revision: count for revision, count in world.plan(replicas, surge, unavailable).items() if count} == (
        world.desired
    )


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), limits)
def test_a_revision_that_never_becomes_ready_leaves_the_old_one_serving(replicas: int, limit: tuple[int, int]) -> None:
    surge, unavailable = limit
    world = World()
    converge(world, replicas, surge, unavailable)
    world.current = "bad"
    world.broken.add("bad")
    converge(world, replicas, surge, unavailable)
    assert world.available >= replicas - unavailable
    # A reboot in the middle: no pod is ready for a while, and the old ones must still be kept.
    for pod in world.pods:
        pod.ready = False
    world.desired |= world.plan(replicas, surge, unavailable)
    world.run_controllers()
    world.start()
    assert world.available >= replicas - unavailable
    world.current = "r0"
    converge(world, replicas, surge, unavailable)
    assert world.desired == {"r0": replicas}
    assert world.available == replicas


@given(st.integers(0, 6), st.integers(0, 6), limits)
def test_scaling_one_revision_is_immediate(before: int, after: int, limit: tuple[int, int]) -> None:
    surge, unavailable = limit
    world = World()
    converge(world, before, surge, unavailable)
    planned = world.plan(after, surge, unavailable)
    assert planned == {"r0": after}


def test_without_room_for_a_surge_a_new_engine_starts_only_when_an_old_one_is_gone() -> None:
    old = RevisionPods("old", desired=2, active=2, terminating=0, ready=2)
    new = RevisionPods("new", desired=0, active=0, terminating=0, ready=0)
    assert replica_counts(2, new, [old], max_surge=0, max_unavailable=1) == {"new": 0, "old": 1}
    draining = RevisionPods("old", desired=1, active=1, terminating=1, ready=1)
    assert replica_counts(2, new, [draining], max_surge=0, max_unavailable=1) == {"new": 0, "old": 1}
    gone = RevisionPods("old", desired=1, active=1, terminating=0, ready=1)
    assert replica_counts(2, new, [gone], max_surge=0, max_unavailable=1) == {"new": 1, "old": 1}


def test_terminating_pods_count_beside_those_about_to_replace_them() -> None:
    # Found at random: a rollback reconciled twice before the controller had created the first new pod.
    back = RevisionPods("r0", desired=1, active=0, terminating=1, ready=0)
    other = RevisionPods("r1", desired=1, active=1, terminating=0, ready=1)
    assert replica_counts(2, back, [other], max_surge=1, max_unavailable=1) == {"r0": 1, "r1": 1}


@given(st.integers(0, 3), st.integers(1, 4), limits)
def test_a_deployment_scaled_down_by_hand_is_restored_before_it_loses_a_pod(
    lowered: int, replicas: int, limit: tuple[int, int]
) -> None:
    surge, unavailable = limit
    world = World()
    converge(world, replicas, surge, unavailable)
    world.desired["r0"] = min(lowered, replicas)
    assert world.plan(replicas, surge, unavailable) == {"r0": replicas}


@given(st.integers(0, 3), st.integers(1, 4), limits)
def test_a_deployment_scaled_down_by_hand_is_restored_however_late_it_is_observed(
    lowered: int, replicas: int, limit: tuple[int, int]
) -> None:
    surge, unavailable = limit
    world = World()
    converge(world, replicas, surge, unavailable)
    world.desired["r0"] = min(lowered, replicas)
    world.run_controllers()
    if surge:
        assert world.plan(replicas, surge, unavailable)["r0"] > world.desired["r0"] or lowered >= replicas
    converge(world, replicas, surge, unavailable)
    assert world.desired == {"r0": replicas}
    assert world.available == replicas


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 5), limits, st.integers(0, 6), st.integers(0, 3))
def test_while_a_change_is_held_engines_are_scaled_and_no_replacement_begins(
    data: st.DataObject, replicas: int, limit: tuple[int, int], scaled: int, steps: int
) -> None:
    surge, unavailable = limit
    world = World()
    converge(world, replicas, surge, unavailable)
    world.current = "r1"
    for _ in range(steps):  # the change is on its way, or has not begun
        world.desired |= world.plan(replicas, surge, unavailable)
        world.run_controllers()
        world.remove_terminating_pods()
        world.start()
    begun, earlier = world.desired.get("r1", 0), world.desired.get("r0", 0)
    for _ in range(data.draw(st.integers(1, 25), label="events")):
        match data.draw(st.sampled_from(["hold", "hold", "control", "collect", "start one"])):
            case "hold":
                before, planned = world.available, world.hold(scaled, surge)
                grown = any(count > world.desired.get(revision, 0) for revision, count in planned.items())
                world.desired |= planned
                after = dataclasses.replace(world, pods=[dataclasses.replace(pod) for pod in world.pods])
                after.run_controllers()
                assert after.available >= min(before, scaled)
                if grown:
                    assert len(after.pods) <= scaled + surge
            case "control":
                world.run_controllers()
            case "collect":
                world.remove_terminating_pods()
            case "start one":
                waiting = [pod for pod in world.pods if not pod.ready]
                if waiting:
                    data.draw(st.sampled_from(waiting)).ready = True
    for _ in range(10 * (replicas + scaled + 2)):
        world.desired |= world.hold(scaled, surge)
        world.run_controllers()
        world.remove_terminating_pods()
        world.start()
    assert world.available == scaled
    if world.desired.get("r0", 0) > 0:
        assert world.desired.get("r1", 0) <= begun
    if earlier and not begun:
        assert world.desired.get("r1", 0) == 0


def test_held_with_a_replacement_on_its_way_it_ends_and_the_next_one_waits() -> None:
    old = RevisionPods("old", desired=3, active=3, terminating=0, ready=3)
    starting = RevisionPods("new", desired=1, active=1, terminating=0, ready=0)
    assert held_counts(3, starting, [old], max_surge=1) == {"new": 1, "old": 3}
    started = RevisionPods("new", desired=1, active=1, terminating=0, ready=1)
    assert held_counts(3, started, [old], max_surge=1) == {"new": 1, "old": 2}
    after = RevisionPods("old", desired=2, active=2, terminating=0, ready=2)
    assert held_counts(3, started, [after], max_surge=1) == {"new": 1, "old": 2}


def test_held_scaling_keeps_the_mix_and_adds_what_is_proven() -> None:
    old = RevisionPods("old", desired=3, active=3, terminating=0, ready=3)
    new = RevisionPods("new", desired=1, active=1, terminating=0, ready=1)
    assert held_counts(6, new, [old], max_surge=2) == {"new": 1, "old": 5}
    assert held_counts(1, new, [old], max_surge=0) == {"new": 0, "old": 1}
    none = RevisionPods("new", desired=0, active=0, terminating=0, ready=0)
    asleep = RevisionPods("old", desired=0, active=0, terminating=0, ready=0)
    assert held_counts(2, none, [asleep], max_surge=1) == {"new": 0, "old": 2}
    older = RevisionPods("older", desired=1, active=1, terminating=0, ready=1)
    assert held_counts(6, none, [older, old], max_surge=2, stable="older") == {"new": 0, "older": 3, "old": 3}
