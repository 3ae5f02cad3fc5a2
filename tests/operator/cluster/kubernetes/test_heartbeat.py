"""An operator without leader election shows by a Lease that it is there: else others take its services over."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from operator_support.apiserver import LeaseServer, fake_api_server
from operator_support.local import free_port, until

from blade_operator.cluster.kubernetes.heartbeat import BEAT, DURATION, Heartbeat
from blade_operator.cluster.kubernetes.installations import GONE_AFTER, Installations
from blade_operator.controller.process import Process, Settings
from blade_operator.render import Defaults


def heartbeat(server: LeaseServer, identity: str = "me") -> Heartbeat:
    api: Any = server
    return Heartbeat(api, "default", "bladellm", identity)


async def gone(server: LeaseServer) -> bool:
    api: Any = server
    return await Installations(api).is_gone("default/bladellm")


def age(server: LeaseServer, seconds: float) -> None:
    assert server.lease is not None
    renewed = datetime.now(UTC) - timedelta(seconds=seconds)
    server.lease["spec"]["renewTime"] = renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def test_an_installation_that_beats_is_not_gone_until_it_has_long_ended() -> None:
    server = LeaseServer()
    assert await gone(server)
    await heartbeat(server).start()
    assert not await gone(server)
    age(server, GONE_AFTER + 60)
    assert await gone(server)
    await heartbeat(server).beat()
    assert not await gone(server)
    assert BEAT * 2 < DURATION < GONE_AFTER


async def test_a_lease_that_another_process_renews_is_left_to_it() -> None:
    server = LeaseServer()
    await heartbeat(server, "elected").beat()
    await heartbeat(server).beat()
    assert server.lease is not None
    assert (server.lease["spec"]["holderIdentity"], server.writes) == ("elected", 1)
    age(server, DURATION + BEAT + 60)
    await heartbeat(server).beat()
    assert server.lease["spec"]["holderIdentity"] == "me"
    del server.lease["spec"]["renewTime"]
    server.lease["spec"]["holderIdentity"] = "odd"
    await heartbeat(server).beat()
    assert server.lease["spec"]["holderIdentity"] == "me"


async def test_a_lease_that_cannot_be_written_is_said_once_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    server = LeaseServer()
    server.away = True
    beating = heartbeat(server)
    with caplog.at_level(logging.WARNING):
        failure = await beating._try_beat("")
        await beating._try_beat(failure)
    assert len([record for record in caplog.records if "take this one for gone" in record.message]) == 1
    server.away = False
    assert await beating._try_beat(failure) == ""


async def test_a_process_without_election_beats_before_it_works() -> None:
    async with fake_api_server() as server:
        settings = Settings("default", (), Defaults(), None, "default/bladellm-operator", "me", free_port(), 1)
        process = Process(server.configuration, settings, lambda: None)
        await process.start()
        await until(lambda: server.lease)
        assert server.lease is not None
        assert server.lease["metadata"] == {"name": "bladellm-operator", "namespace": "default"}
        assert server.lease["spec"]["holderIdentity"] == "me"
        await process.stop()
        assert not process.failed
