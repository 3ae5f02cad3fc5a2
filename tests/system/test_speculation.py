"""Speculative decoding from `blade_operator local up` to a client: the manifest of examples/, the demo model's EAGLE-3
head, n-grams and lookahead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI
from operator_support.loop import Loop, loop

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("plain", "speculative", "eagle3", "ngram", "lookahead")


def manifests() -> dict[str, dict[str, Any]]:
    """The example, the same without speculation, with a head, n-grams and lookahead; all in fp32, where tokens are the
    same."""
    made: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        text = (EXAMPLES / "speculative.yaml").read_text()
        manifest = yaml.safe_load(text.replace("file:///opt/bladellm/examples/", f"file://{EXAMPLES}/"))
        manifest["metadata"]["name"] = name
        engine = manifest["spec"]["engine"]
        engine["dtype"] = "float32"
        if name == "plain":
            del engine["speculative"]
        elif name == "eagle3":
            head = {"uri": f"file://{EXAMPLES}/demo_model/eagle3"}
            engine["speculative"] = {"method": "eagle3", "draftModel": head}
        elif name == "ngram":
            engine["speculative"] = {"method": "ngram", "ngram": {"minMatch": 1}}
        elif name == "lookahead":
            engine["speculative"] = {"method": "lookahead", "lookahead": {"windowSize": 10, "gramSize": 2}}
        made[name] = manifest
    return made


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    folder = tmp_path_factory.mktemp("loop")
    (folder / "services.yaml").write_text(yaml.safe_dump_all(manifests().values()))
    with loop(folder, real=True) as each:
        each.environment["OMP_NUM_THREADS"] = "1"
        each.start("-f", str(folder / "services.yaml"))
        each.until(lambda: all(each.ready(name) for name in NAMES), 200)
        yield each


@pytest.mark.timeout(300)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_responses_are_those_of_ordinary_decoding(running: Loop, temperature: float) -> None:
    answers = {}
    for name in NAMES:
        with OpenAI(base_url=running.service(name)["status"]["url"], api_key="none", max_retries=0) as client:
            answer = client.chat.completions.create(
                model="demo",
                messages=[{"role": "user", "content": "What does len do? What does len do?"}],
                temperature=temperature,
                max_tokens=60,
                seed=11,
            )
            answers[name] = answer.choices[0].message.content
    assert answers["plain"]
    assert set(answers.values()) == {answers["plain"]}


def test_the_status_says_that_it_is_speculative_and_what_the_draft_takes(running: Loop) -> None:
    speculative = NAMES[1:]
    running.until(lambda: all("speculation" in running.service(name)["status"] for name in speculative), 30)
    statuses = {name: running.service(name)["status"] for name in NAMES}
    assert [name for name, status in statuses.items() if "speculation" in status] == [*speculative]
    assert [name for name, status in statuses.items() if "draft" in status["fit"]] == ["speculative", "eagle3"]
