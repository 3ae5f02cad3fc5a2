"""Where keys come from: what makes no sense there is named, and changes nothing."""

from pathlib import Path

import pytest

from blade_router.admission.key_sources import WatchedKeys
from blade_router.config import ConfigError


def test_bytes_that_are_no_text_are_a_mistake_like_others(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text('{"keys": []}')
    keys = WatchedKeys(tmp_path)
    assert keys.load()
    (tmp_path / "bad.json").write_bytes(b'{"keys": [{"name": "\xff"}]}')
    with pytest.raises(ConfigError, match=r"bad\.json: byte 20 is not UTF-8"):
        keys.load()
    assert keys.keys == ()
    assert not keys.live
