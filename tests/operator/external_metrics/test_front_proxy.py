"""For whom the front proxy speaks, and whether that user may read: what is remembered of it, and for how long."""

from __future__ import annotations

from typing import Any, cast

import pytest
from multidict import CIMultiDict
from operator_support.apiserver import Clock

from blade_operator.cluster.kubernetes.api import Api
from blade_operator.external_metrics import access as module
from blade_operator.external_metrics.access import Access
from blade_operator.external_metrics.front_proxy import MOST_GROUPS, FrontProxy, Unauthenticated, User

DATA = {
    "requestheader-client-ca-file": "PEM",
    "requestheader-allowed-names": '["front-proxy", "aggregator"]',
    "requestheader-username-headers": '["X-Remote-User", "X-User"]',
    "requestheader-uid-headers": '["X-Remote-Uid"]',
    "requestheader-group-headers": '["X-Remote-Group", "X-Group"]',
    "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
}


def _front_proxy(**changed: str) -> FrontProxy:
    return FrontProxy.of({"data": DATA | {name.replace("_", "-"): value for name, value in changed.items()}})


def test_all_that_it_says_of_a_user() -> None:
    headers = CIMultiDict[str](
        [
            ("x-remote-user", "jane"),
            ("X-Remote-Uid", "42"),
            ("X-Remote-Group", "a"),
            ("X-Group", "b"),
            ("X-Remote-Group", "c"),
            ("x-remote-extra-Acme.com%2fProject", "p"),
            ("X-Remote-Extra-acme.com%2Fproject", "q"),
            ("X-Remote-Extra-Scopes", "s"),
        ]
    )
    user = User("jane", "42", ("a", "c", "b"), {"acme.com/project": ("p", "q"), "scopes": ("s",)})
    assert _front_proxy().user("aggregator", headers) == user
    assert _front_proxy(requestheader_allowed_names="").user("anything", headers) == user
    assert _front_proxy().user("front-proxy", CIMultiDict({"X-User": "joe"})) == User("joe")


def test_nobody_is_guessed() -> None:
    user = CIMultiDict({"X-Remote-User": "jane"})
    for name in ("", "front-proxy2", "Front-Proxy"):
        with pytest.raises(Unauthenticated, match="not the API server's front proxy's"):
            _front_proxy().user(name, user)
    with pytest.raises(Unauthenticated, match="names no user"):
        _front_proxy().user("front-proxy", CIMultiDict({"X-Remote-User": "", "X-Remote-Group": "a"}))
    many = CIMultiDict[str]([("X-Remote-User", "jane"), *[("X-Remote-Group", "a")] * (MOST_GROUPS + 1)])
    with pytest.raises(Unauthenticated, match="more than 256 groups"):
        _front_proxy().user("front-proxy", many)


@pytest.mark.parametrize("name", ["requestheader_client_ca_file", "requestheader_username_headers"])
def test_without_aggregation_it_says_what_the_api_server_needs(name: str) -> None:
    with pytest.raises(ValueError, match="the API server needs --requestheader-client-ca-file"):
        _front_proxy(**{name: ""})
    with pytest.raises(ValueError, match="names no front proxy"):
        FrontProxy.of({})


@pytest.mark.parametrize("text", ["front-proxy", '{"a": 1}', "[1]"])
def test_a_field_that_is_no_list_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="requestheader-allowed-names"):
        _front_proxy(requestheader_allowed_names=text)


class _Reviews:
    def __init__(self) -> None:
        self.count = 0
        self.status: Any = {"allowed": True}

    async def write(self, method: str, path: str, body: Any, **_: Any) -> Any:
        self.count += 1
        return {"status": self.status}


async def test_what_the_api_server_said_counts_for_seconds_and_for_that_question_only() -> None:
    reviews, clock = _Reviews(), Clock()
    access = Access(cast(Api, reviews), clock)

    async def allows(user: User, metric: str = "m") -> bool:
        return await access.allows(user, "g", "ns", metric)

    assert [await allows(User("a", groups=("x", "y"))), await allows(User("a", groups=("y", "x")))] == [True, True]
    assert reviews.count == 1
    others = [User("b"), User("a"), User("a", uid="1"), User("a", extra={"k": ("v",)})]
    assert [await allows(each) for each in others] == [True] * 4
    assert await allows(User("b"), "n")
    assert reviews.count == 6
    clock.now += module.ALLOWED_SECONDS
    for status in ({"allowed": False}, {"allowed": True, "denied": True}, {"allowed": "yes"}, {}, None):
        reviews.status = status
        assert not await allows(User("a"))
        clock.now += module.REFUSED_SECONDS
    assert reviews.count == 11


async def test_a_bounded_number_of_decisions_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REMEMBERED", 3)
    reviews = _Reviews()
    access = Access(cast(Api, reviews), Clock())
    for number in range(10):
        await access.allows(User(f"u{number}"), "g", "ns", "m")
    assert len(access._decisions) == 3
    await access.allows(User("u9"), "g", "ns", "m")
    assert reviews.count == 10
