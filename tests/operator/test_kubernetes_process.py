"""The operator's process: its options, and what it answers to probes."""

from __future__ import annotations

import json
import logging

import aiohttp
import pytest

from blade_operator import health, metrics
from blade_operator.cli.arguments import parse
from blade_operator.main import main


async def test_probes_say_what_is_wrong() -> None:
    wrong = {"healthz": "", "readyz": "waiting for the first lists"}
    async with health.serve(0, lambda: wrong["healthz"], lambda: wrong["readyz"], "127.0.0.1") as port:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

            async def ask(path: str) -> tuple[int, str]:
                async with session.get(path) as answer:
                    return answer.status, await answer.text()

            assert await ask("/healthz") == (200, "ok\n")
            assert await ask("/readyz") == (503, "waiting for the first lists\n")
            wrong["readyz"] = ""
            assert await ask("/readyz") == (200, "ok\n")
            metrics.QUEUE_DEPTH.set(7)
            status, text = await ask("/metrics")
            assert status == 200
            assert "blade_operator_queue_depth 7.0" in text


def test_options_of_run() -> None:
    options = parse(["run", "--namespaces", "a, b", "--no-leader_elect", "--http_port", "0", "--workers", "3"])
    assert options.namespaces == ["a", "b"]
    assert not options.leader_elect
    assert (options.http_port, options.workers) == (0, 3)
    defaults = parse(["run"])
    assert defaults.leader_elect
    assert (defaults.lease_name, defaults.http_port, defaults.workers) == ("bladellm-operator", 8080, 8)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (["--workers", "0"], "'0' is not a number from 1 up"),
        (["--http_port", "-1"], "'-1' is not a port"),
        (["--leader-elect"], "did you mean '--leader_elect'?"),
        (["--watch-keys"], "did you mean '--watch_keys'?"),
        (["--no_watch_keys"], "did you mean '--no-watch_keys'?"),
    ],
)
def test_a_wrong_option_is_named(argument: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["run", *argument])
    assert message in capsys.readouterr().err


def test_without_a_cluster_it_says_how_to_name_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        assert main(["run", "--kubeconfig", "/does/not/exist"]) == 1
    finally:
        logging.getLogger().handlers[:], logging.getLogger().level = before
    assert "give --kubeconfig FILE or $KUBECONFIG" in capsys.readouterr().err


def test_json_lines_are_json() -> None:
    from blade_operator.cli.run import _JsonLines

    record = logging.LogRecord("a.b", logging.WARNING, "", 0, 'said "%s"', ("x",), None)
    line = json.loads(_JsonLines().format(record))
    assert (line["level"], line["logger"], line["message"]) == ("WARNING", "a.b", 'said "x"')
