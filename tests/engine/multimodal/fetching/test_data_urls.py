"""``data:`` URLs."""

from __future__ import annotations

import base64
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blade_llm.multimodal.fetching import MediaError, describe
from blade_llm.multimodal.fetching import data_urls as module
from blade_llm.multimodal.fetching.data_urls import decode_data_url

LIMIT = 1 << 20


def url_of(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


@given(st.binary(min_size=1, max_size=200), st.integers(4, 40), st.data())
def test_base64_in_every_form(data: bytes, chunk: int, draw: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_CHUNK", chunk)
        encoded = draw.draw(st.sampled_from([base64.b64encode, base64.urlsafe_b64encode]))(data).decode()
        if draw.draw(st.booleans()):
            encoded = encoded.rstrip("=")
        characters = [draw.draw(st.sampled_from(["", "", "", " ", "\n", "\r\n", "\t", "%0A"])) + one for one in encoded]
        if draw.draw(st.booleans()):
            characters = [f"%{ord(one):02x}" if one in "+/=A" else one for one in characters]
        text = "".join(characters) + draw.draw(st.sampled_from(["", "\n", " "]))
        assert decode_data_url("data:image/png;BASE64," + text, LIMIT) == data


@given(st.binary(min_size=1, max_size=200), st.integers(4, 40), st.sampled_from(["", "/", "abc%"]))
def test_percent_encoded(data: bytes, chunk: int, safe: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_CHUNK", chunk)
        assert decode_data_url("data:," + quote_from_bytes(data, safe.rstrip("%")), LIMIT) == data


def test_long_ones_are_decoded_in_pieces() -> None:
    data = bytes(range(256)) * 4096
    assert decode_data_url(url_of(data), LIMIT) == data
    assert decode_data_url("data:," + "".join(f"%{byte:02X}" for byte in data), LIMIT) == data


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("data:image/png;base64", "no comma"),
        ("data:" + "x" * 2000 + ",", "no comma"),
        ("data:image/png;base64,", "holds no data"),
        ("data:image/png;base64, \n", "holds no data"),
        ("data:image/png,", "holds no data"),
        ("data:;base64,AAAAA", "no base64"),
        ("data:;base64,AA=A", "no base64"),
        ("data:;base64,=AAA", "no base64"),
        ("data:;base64,AAA====", "no base64"),
        ("data:;base64,AA*A", "no base64"),
        ("data:;base64," + "A" * 300_001 + "=" + "A" * 300_000, "padding"),
        ("data:;base64,AAé=", "no ASCII"),
        ("data:,a%", "two hex digits"),
        ("data:,a%4", "two hex digits"),
        ("data:,a%4g", "two hex digits"),
        ("data:,%%41", "two hex digits"),
        ("data:,é", "no ASCII"),
    ],
)
def test_faults(url: str, reason: str) -> None:
    with pytest.raises(MediaError, match=reason) as raised:
        decode_data_url(url, LIMIT)
    assert raised.value.kind == "invalid"
    assert str(raised.value).startswith(describe(url))
    assert "AAAA" not in str(raised.value)


@pytest.mark.parametrize("size", [1, 2, 3, 1000, 1001, 1002])
def test_the_bound_is_exact(size: int) -> None:
    data = b"\xff" * size
    for url in (url_of(data), url_of(data).rstrip("="), "data:," + quote_from_bytes(data)):
        assert decode_data_url(url, size) == data
        with pytest.raises(MediaError, match=f"more than {size - 1} bytes") as raised:
            decode_data_url(url, size - 1)
        assert raised.value.kind == "too_large"


def test_what_says_its_length_is_refused_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def decoded(*_: object) -> bytes:
        raise AssertionError("decoded")

    monkeypatch.setattr(module, "_decode", decoded)
    for url in (
        url_of(bytes(LIMIT + 3)),
        "data:," + "a" * (LIMIT + 1),
        "data:," + "%41" * (2 * LIMIT),
        "data:;base64," + "%41" * (2 * LIMIT),
    ):
        with pytest.raises(MediaError, match="more than 1048576 bytes"):
            decode_data_url(url, LIMIT)


def test_white_space_is_not_counted() -> None:
    data = bytes(3000)
    wrapped = base64.encodebytes(data).decode().replace("\n", "\r\n  ")
    assert decode_data_url("data:;base64," + wrapped, 3000) == data
