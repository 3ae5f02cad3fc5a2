"""What is redacted, by example and by property: no secret survives wherever a secret may stand."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blade_operator.kubectl.commands.command import commands
from blade_operator.kubectl.redact import redact_object, redact_words
from blade_operator.model.objects import Object
from blade_operator.redact_text import REDACTED, redact_text
from blade_operator.secret_names import is_secret_name

SECRETS = st.text(string.ascii_letters + string.digits + "_+/.~-", min_size=12, max_size=40).filter(
    lambda text: text[0].isalnum()
)
NAMES = st.sampled_from(
    ["token", "HF_TOKEN", "API_KEY", "apiKey", "api-key", "password", "AWS_SECRET_ACCESS_KEY", "clientSecret", "X_AUTH"]
)


@pytest.mark.parametrize("name", ["tokenizer", "max_tokens", "MAX_TOKENS", "key", "tokens", "keysSecretFile", "author"])
def test_names_that_only_look_like_secrets(name: str) -> None:
    assert not is_secret_name(name)


@given(NAMES, SECRETS)
def test_a_value_goes_in_whatever_form_it_is_given(name: str, secret: str) -> None:
    secret = f"Q9{secret}"
    for text in (
        f"{name}={secret}",
        f"{name}: {secret}",
        f"--{name} {secret} --next 1",
        f"--{name}={secret}",
        f"see: {name}={secret}, then",
        f"GET https://host/path?{name}={secret}&page=2",
        json.dumps({name: secret, "other": 1}),
        json.dumps(json.dumps({name: secret})),
        f"{name}='{secret}'",
    ):
        assert secret not in redact_text(text), text


@given(SECRETS)
def test_credentials_go_wherever_they_stand(secret: str) -> None:
    secret = f"Q9{secret}"
    for text in (
        f"Authorization: Bearer {secret}",
        f'{{"authorization": "Bearer {secret}"}}',
        f"curl -H 'authorization: Basic {secret}' x",
        f"https://user:{secret.replace('/', '_')}@host/x",
        f"proxy-authorization={secret}",
        f"hf_{secret.translate(dict.fromkeys(map(ord, '+/.~-'), 'x'))}abcdefgh",
        f"Cookie: session={secret}; b=c",
    ):
        hidden = secret.replace("/", "_") if "@host" in text else secret
        assert hidden not in redact_text(text), text


@given(NAMES, SECRETS, st.booleans())
def test_no_secret_of_an_object_survives(name: str, secret: str, joined: bool) -> None:
    secret = f"Q9{secret}"
    pod: Object = {
        "kind": "Pod",
        "metadata": {
            "name": "a",
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": secret, "note": f"{name}={secret}"},
            "managedFields": [{"x": secret}],
        },
        "spec": {
            "containers": [
                {
                    "args": [f"--{name}={secret}"] if joined else [f"--{name}", secret, "--port", "80"],
                    "env": [{"name": name, "value": secret}, {"name": "PORT", "value": "80"}],
                }
            ]
        },
        "status": {"message": f"GET https://x/?{name}={secret} failed"},
    }
    held: Object = {"kind": "Secret", "metadata": {"name": "s"}, "data": {"a": secret}, "stringData": {"b": secret}}
    listed = {"kind": "List", "items": [pod, held]}
    hidden = redact_object(listed)
    assert secret not in json.dumps(hidden)
    assert list(hidden["items"][1]["data"]) == ["a"]
    assert hidden["items"][0]["spec"]["containers"][0]["env"][1] == {"name": "PORT", "value": "80"}
    assert secret in json.dumps(listed)  # it is a copy


@pytest.mark.parametrize("name", ["OPENAI_KEY", "DB_PASS", "LICENSE_KEY", "SESSION_SALT"])
def test_variables_end_with_words_that_mean_something_else_in_other_places(name: str) -> None:
    pod: Object = {"env": [{"name": name, "value": "Q9s3cret"}]}
    assert redact_object(pod) == {"env": [{"name": name, "value": REDACTED}]}
    assert "Q9s3cret" not in json.dumps(
        commands([{"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", **pod}]}}])
    )


def test_a_flag_and_its_value_may_be_two_items_of_any_list() -> None:
    service: Object = {"spec": {"engine": {"extraArgs": ["--hub_token", "Q9s3cret", "--port", "80"]}}}
    assert redact_object(service)["spec"]["engine"]["extraArgs"] == ["--hub_token", REDACTED, "--port", "80"]


def test_what_is_no_secret_stays() -> None:
    text = (
        "--model /models/qwen --max_tokens 5 --tokenizer_dir /t BLADE_INTERNAL_TOKEN_FILE=/etc/token the token is bad"
    )
    assert redact_text(text) == text
    words = ["blade_llm_server", "--model", "/m", "--served_model_name", "x", "--token_file", "/x"]
    assert redact_words(words) == words
    assert redact_words(["--api_key", "--port", "80"]) == ["--api_key", "--port", "80"]
    assert redact_words(["--api_key", "abc", "def"]) == ["--api_key", REDACTED, "def"]
    reference: Object = {"kind": "Pod", "secretKeyRef": {"name": "hub", "key": "token"}, "secretName": "hub"}
    assert redact_object(reference) == reference


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["a", "a-", "key=", "a='", "https://", "eyJaaaaaaaaa.", " ", "\\", "cookie: "])
def test_a_long_line_hangs_nobody(piece: str) -> None:
    """A search that goes back and forth, in quadratic time, would take hours."""
    text = piece * (200_000 // len(piece))
    assert len(redact_text(text)) > 0
