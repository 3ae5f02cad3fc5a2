"""API keys: files of keys, and authentication of clients."""

import hashlib
import io
import json
from collections.abc import Mapping
from typing import Any

import pytest
from router_support.keys import HEX, SECRET, content, key

from blade_protocol.routing import Limits
from blade_router.admission.keys import ANONYMOUS, ANONYMOUS_OF_ANY_PRIORITY, Key, Keyring, parse_keys
from blade_router.app import main
from blade_router.config.parsing import ConfigError
from blade_router.http.errors import Headers, Refused


def parsed(text: str) -> dict[str, Key]:
    return {key.name: key for key in parse_keys({"keys.json": text.encode()})}


# what a file says


def test_a_key_overrides_its_tier() -> None:
    found = parsed(
        content(
            key("a", "1", tier="gold"),
            key("b", "2", tier="gold", priority=0, requests_per_minute=5, models=["m"], expires="2027-01-31T00:00:00Z"),
            key("c", "3"),
            gold={"priority": -10, "weight": 3, "requests_per_minute": 100, "concurrent": 7},
        )
    )
    gold, own, plain = found["a"], found["b"], found["c"]
    assert (gold.priority, gold.weight, gold.limits) == (-10, 3, Limits(requests_per_minute=100, concurrent=7))
    assert (own.priority, own.limits) == (0, Limits(requests_per_minute=5, concurrent=7))
    assert (own.models, own.expires) == (frozenset({"m"}), 1801353600.0)
    assert (plain.priority, plain.weight, plain.limits, plain.models, plain.expires) == (0, 1.0, Limits(), None, None)


def test_files_of_a_folder_are_one_list() -> None:
    files = {
        "secret/a.json": content(key("a", "1", tier="gold")).encode(),
        "secret/tiers": content(gold={"priority": -1}).encode(),
        "secret/team-b": b"sk-plain\n",
        "secret/team-c": f"sha256:{HEX}\n".encode(),
    }
    found = {key.name: key for key in parse_keys(files)}
    assert found["a"].priority == -1
    assert found["team-b"].digest == hashlib.sha256(b"sk-plain").digest()
    assert found["team-c"].digest.hex() == HEX


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "keys.json: Input data was truncated"),
        ("", "keys.json: expected"),
        ("two words", "keys.json: expected"),
        ('{"keys": [{}]}', r"required field `name` - at `\$.keys\[0\]`"),
        ('{"kys": []}', "an unknown field; known are keys, tiers$"),
        (f'{{"{SECRET}": {{}}}}', "an unknown field; known are keys, tiers$"),
        (f'{{"keys": [{{"{SECRET}`x": 1}}]}}', r"an unknown field - at `\$.keys\[0\]`; known are .*sha256"),
        (f'{{"tiers": {{"{SECRET}": {{"{SECRET}": 1}}}}}}', r"an unknown field - at `\$.tiers\[...\]`; known are "),
        (content({"name": "a"}), r"\$.keys\[0\]: expected one of sha256"),
        (content({"name": "a", "sha256": "12"}), r"\$.keys\[0\].sha256: expected 64 hex"),
        (content({"name": "a b", "key": SECRET}), r"\$.keys\[0\].name: expected printable"),
        (content(key(tier="silver"), gold={}), r"\$.keys\[0\].tier: there is no tier 'silver' \(there is: gold\)"),
        (content(key("a"), key("a", "x")), r"\$.keys\[1\].name: there is another"),
        (content(key("a"), key("b")), r"\$.keys\[1\]: this is the same key as 'a'"),
        (content(key(concurrent=-1)), r"\$.keys\[0\].concurrent: expected 0"),
        (content(key(weight=0)), r"\$.keys\[0\].weight: expected"),
        (content(key(expires="2027-01-01T00:00:00")), r"\$.keys\[0\].expires: expected a time with its zone"),
        (content(gold={"weight": -1}), r"\$.tiers.gold.weight: expected"),
    ],
)
def test_mistakes_are_named_by_their_field_and_never_show_a_key(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        parsed(text)
    assert SECRET not in str(caught.value)


# who a client is


def ring(*keys: Mapping[str, Any]) -> Keyring:
    ring = Keyring(required=True)
    ring.replace(parsed(content(*keys)).values())
    return ring


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", f"Bearer {SECRET}".encode())],
        [(b"authorization", f"bearer  {SECRET} ".encode())],
        [(b"x-api-key", SECRET.encode())],
        [(b"api-key", SECRET.encode())],
        [(b"authorization", b"Basic dXNlcg=="), (b"x-api-key", SECRET.encode())],
    ],
)
def test_where_a_key_may_be(headers: Headers) -> None:
    assert ring(key()).find(headers).name == "team-a"


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ([], "You didn't provide an API key"),
        ([(b"authorization", b"Basic dXNlcg==")], "You didn't provide"),
        ([(b"authorization", b"Bearer ")], "You didn't provide"),
        ([(b"authorization", f"Bearer {SECRET}x".encode())], "Incorrect"),
        ([(b"authorization", f"Bearer {HEX}".encode())], "Incorrect"),
        ([(b"x-api-key", b"\xff\x00")], "Incorrect"),
        ([(b"api-key", b"sk-old")], "expired"),
    ],
)
def test_all_others_get_the_same_401(headers: Headers, message: str) -> None:
    with pytest.raises(Refused, match=message) as caught:
        ring(key(), key("old", "sk-old", expires="2001-01-01T00:00:00Z")).find(headers)
    refusal = caught.value
    error = json.loads(refusal.body)["error"]
    assert (refusal.status, error["code"], error["type"]) == (401, "invalid_api_key", "invalid_request_error")
    assert (b"www-authenticate", b"Bearer") in refusal.headers
    assert SECRET not in str(refusal)


def test_without_keys_every_client_is_admitted() -> None:
    assert Keyring().find([]).name == ""


@pytest.mark.parametrize(("anonymous", "least"), [(ANONYMOUS, 0), (ANONYMOUS_OF_ANY_PRIORITY, None)])
def test_without_keys_a_client_goes_ahead_of_others_only_where_that_is_allowed(
    anonymous: Key, least: int | None
) -> None:
    assert Keyring(anonymous=anonymous).find([]).priority == least


def test_an_empty_list_of_keys_admits_no_client() -> None:
    with pytest.raises(Refused) as caught:
        ring().find([(b"x-api-key", b"")])
    assert caught.value.status == 401


def test_before_keys_are_known_clients_are_to_retry() -> None:
    with pytest.raises(Refused) as caught:
        Keyring(required=True).find([(b"x-api-key", SECRET.encode())])
    assert (caught.value.status, caught.value.retry_after) == (503, 1)


# the command line


def test_hash_key_of_a_given_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(SECRET + "\n"))
    main(["hash-key", "team-a"])
    assert capsys.readouterr() == (f'{{"name":"team-a","sha256":"{HEX}"}}\n', "")


def test_hash_key_makes_a_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    main(["hash-key", "team-a"])
    line, shown = capsys.readouterr()
    made = shown.splitlines()[0]
    assert made.startswith("sk-")
    assert ring(json.loads(line)).find([(b"x-api-key", made.encode())]).name == "team-a"
