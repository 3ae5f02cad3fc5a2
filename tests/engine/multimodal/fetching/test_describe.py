"""What logs and errors say of a URL."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blade_llm.multimodal.fetching import describe


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://user:pass@CDN.example:8443/secret/path?key=1#f", "https://cdn.example (54 characters)"),
        ("http://[::1]/x", "http://[::1] (14 characters)"),
        ("http://user:pa/ss@host/", "http: (23 characters)"),
        ("http://" + "h" * 300 + "/", "http: (308 characters)"),
        ("http://host/" + "a" * 10_000, "http: (10012 characters)"),
        ("data:image/png;base64,AAAA", "data:image/png (26 characters)"),
        ("data:AAAA", "data: (9 characters)"),
        ("data:AAAA/" + "A" * 100 + ",", "data: (111 characters)"),
        ("file:///secret/path", "file: (19 characters)"),
        ("secret", "a URL without a scheme (6 characters)"),
        ("aVeryLongSchemeWithSecret:x", "a URL without a scheme (27 characters)"),
    ],
)
def test_no_secrets(url: str, text: str) -> None:
    assert describe(url) == text


@given(st.text(), st.sampled_from(["", "http://", "https://", "data:", "file:", "x:"]))
def test_any_text(text: str, scheme: str) -> None:
    described = describe(scheme + text)
    assert described.isprintable()
    assert len(described) < 330
    assert describe(f"https://a:{'s3cret'}{text}@h/").count("s3cret") == 0 or "/" in text or "\\" in text or "@" in text
