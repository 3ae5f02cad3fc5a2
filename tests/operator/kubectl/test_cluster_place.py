"""The way to a cluster: what is read ahead of a slow reader."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from operator_support.fake_cluster import fake_cluster, pod

from blade_operator.cluster.kubernetes.api import Api
from blade_operator.kubectl.places import cluster_place
from blade_operator.kubectl.places.cluster_place import ClusterPlace


def test_a_log_that_grows_faster_than_it_is_printed_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0
    most = cluster_place._PIECES
    flooded = 100 * most

    async def endless(self: Api, *args: Any, **fields: Any) -> AsyncIterator[bytes]:
        nonlocal sent
        for sent in itertools.count(1):
            yield b"line\n"
            await asyncio.sleep(0)
            if sent > flooded:
                raise AssertionError("nothing holds the log back")

    monkeypatch.setattr(Api, "stream", endless)
    with fake_cluster(tmp_path) as cluster, ClusterPlace(str(cluster.kubeconfig), None) as place:
        log = place.follow(pod("a", "engine"), "engine", None)
        assert [next(log) for _ in range(3)] == [b"line\n"] * 3
        place._run(asyncio.sleep(0.2))  # the reader does nothing
        assert sent <= most + 4
        assert [next(log) for _ in range(2 * most)] == [b"line\n"] * 2 * most
        log.close()  # type: ignore[attr-defined]
