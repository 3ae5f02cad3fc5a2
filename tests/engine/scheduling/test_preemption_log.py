"""Whoever reads the log learns that the KV cache is too small, and what to change, once a minute."""

from __future__ import annotations

import pytest
from engine_support.scheduler_driver import add, sample_and_return, scheduler_of

from blade_llm.scheduling.preemption_log import WARNING_SECONDS, PreemptionLog


def test_the_scheduler_warns_of_its_first_preemption(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = scheduler_of(blocks=6, max_model_len=80)
    for name in ("a", "b"):
        add(scheduler, name, 30)
    while scheduler.stats().preemptions_total == 0:
        sample_and_return(scheduler)
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    message = warning.getMessage()
    assert "Request b is preempted because there is not enough KV cache space" in message
    assert "--kv_cache_bytes" in message


def test_one_warning_a_minute_counts_those_between(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = PreemptionLog(clock=lambda: now)
    for total in range(1, 101):
        log.preempted(f"r{total}", total)
    now = WARNING_SECONDS
    log.preempted("last", 101)
    first, second = [record.getMessage() for record in caplog.records]
    assert "Request r1 is" in first
    assert "(1 preemptions since the last warning, 1 in all)" in first
    assert "Request last is" in second
    assert "(100 preemptions since the last warning, 101 in all)" in second
