"""The labels of /metrics are bounded in number, whatever keys, models and statuses there are."""

from blade_protocol.routing import EndpointConfig
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.observability.accounts import MAX_ACCOUNTS, MAX_LABELS, MAX_UNLISTED, OTHER
from blade_router.observability.metrics import Metrics

LISTED = [f"model-{number}" for number in range(MAX_LABELS // 2)]


def metrics(*, listed: bool = True) -> Metrics:
    endpoints = EndpointSet()
    endpoints.update([EndpointConfig(url="http://10.0.0.1:80"), EndpointConfig(url="http://10.0.0.2:80")])
    for endpoint in endpoints.all[: 2 if listed else 1]:
        endpoint.report.update(models=frozenset(LISTED))
    return Metrics(endpoints)


def request(found: Metrics, key: str = "", model: str = "", status: int = 200) -> None:
    found.begin(0.0)
    found.end(status, 0.0, 0.0, False, key, model, None)


def labels(found: Metrics, name: str) -> set[str]:
    return {
        sample.labels[name]
        for family in found.collect()
        for sample in family.samples
        if name in sample.labels and "key" in sample.labels
    }


def series(found: Metrics) -> int:
    return found.render().count(b"\n")


def test_keys_models_and_pairs_are_bounded() -> None:
    found = metrics()
    before = series(found)
    for number in range(5000):
        request(found, f"key-{number}", LISTED[number % len(LISTED)])
    for number in range(5000):
        request(found, f"key-{number % 500}", LISTED[number % len(LISTED)])
    assert len(labels(found, "key")) <= MAX_LABELS + 1
    assert len(found.accounts.all) <= MAX_ACCOUNTS + 1
    assert series(found) - before <= 5 * (MAX_ACCOUNTS + 1)
    assert found.requests == {200: 10_000}, "all are counted"


def test_names_that_clients_invent_leave_room_for_those_there_are() -> None:
    found = metrics(listed=False)
    for number in range(1000):
        request(found, model=f"invented-{number}", status=404)
    assert labels(found, "model") == {OTHER}
    for number in range(1000):
        request(found, model=f"invented-{number}" + "x" * 1000)
    for model in LISTED:
        request(found, model=model)
    kept = labels(found, "model")
    assert kept.issuperset(LISTED)
    assert len(kept) <= len(LISTED) + MAX_UNLISTED + 1


def test_statuses_that_an_engine_invents_are_bounded() -> None:
    found = metrics()
    for status in range(200, 1000):
        request(found, status=status)
    codes = labels(found, "code")
    assert {"200", "404", "499", "503"} <= codes
    assert len(codes) < 80


def test_keys_that_are_gone_make_room_for_new_ones_and_no_counter_falls() -> None:
    found = metrics()
    for generation in range(5):
        names = [f"key-{generation}-{number}" for number in range(MAX_LABELS - 1)]
        found.accounts.set_keys(names)
        for name in names:
            request(found, name, LISTED[0])
        assert labels(found, "key") >= set(names)
        assert found.requests == {200: (generation + 1) * len(names)}
