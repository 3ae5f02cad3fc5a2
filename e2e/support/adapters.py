"""LoRA adapters of the demo model, what it says with each of them, and whether a service's status tells the truth."""

from __future__ import annotations

import base64
import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx

from blade_protocol.headers import INTERNAL_TOKEN
from blade_protocol.ports import ENGINE_PORT
from e2e.support.prompts import RESPONSES
from e2e.support.service import DEMO_MODEL, Service, names

SOURCES: Final = {"pirate": DEMO_MODEL / "adapter", "polite": DEMO_MODEL.parent / "lora" / "adapter"}
LATE: Final = 5.0
"""Seconds that the status may lag behind the engines: they are looked at, and the status is written, every second or
two."""

Claims = frozenset[tuple[str, str]]
"""Adapter and pod."""


def make_adapters(folder: Path) -> dict[str, dict[str, str]]:
    """Write the model and five adapters below ``folder``; what the merged model says: adapter → prompt → response."""
    shutil.copytree(DEMO_MODEL / "model", folder / "model")
    said = {}
    for name, source, strength in (
        ("pirate", "pirate", 1.0),
        ("polite", "polite", 1.0),
        ("captain", "pirate", -0.8),
        ("butler", "polite", 0.72),
        ("shy", "pirate", -0.6),
    ):
        shutil.copytree(SOURCES[source], folder / name)
        path = folder / name / "adapter_config.json"
        fields = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**fields, "lora_alpha": fields["lora_alpha"] * strength}), encoding="utf-8")
        said[name] = _merged_responses(folder / "model", folder / name)
    return said


def _merged_responses(base: Path, adapter: Path) -> dict[str, str]:
    from examples.demo_model.measure import greedy_answer, prompt_ids
    from examples.lora.merge import merged
    from transformers import AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(base), merged(base, adapter)
    said = {}
    for prompt in RESPONSES:
        tokens = greedy_answer(model, prompt_ids(tokenizer, prompt))
        said[prompt] = str(tokenizer.decode(tokens, skip_special_tokens=True))
    return said


@dataclass(frozen=True)
class Sample:
    """What the status claimed at a moment, and what the engines listed just before or after."""

    at: float
    claimed: Claims
    listed: Claims


class StatusWatch(AbstractContextManager["StatusWatch"]):
    """Compares ``status.adapters`` with the lists of the engines themselves, every second."""

    def __init__(self, service: Service, engines: dict[str, str]) -> None:
        """``engines``: pod → IP address."""
        self._engines = engines
        self.samples: list[Sample] = []
        self._service = service
        self._headers = {INTERNAL_TOKEN: internal_token(service)}
        self._end = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._watching = self._pool.submit(self._run)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._end.set()
        self._watching.result(30)  # raises what ended the watch early
        self._pool.shutdown()

    def _run(self) -> None:
        """Sample at once, each second, and once more after the end."""
        self._sample()
        while not self._end.wait(1.0):
            self._sample()
        self._sample()

    def _sample(self) -> None:
        claimed = frozenset(
            (entry["name"], pod) for entry in self._service.status().get("adapters", ()) for pod in entry["pods"]
        )
        listed = {(name, pod) for pod, address in self._engines.items() for name in self._adapters_of(address)}
        self.samples.append(Sample(time.monotonic(), claimed, frozenset(listed)))

    def _adapters_of(self, address: str) -> list[str]:
        """What an engine lists at its own port; nothing while it cannot be connected to."""
        url = f"http://{address}:{ENGINE_PORT}/v1/models"
        try:
            response = httpx.get(url, headers=self._headers, trust_env=False, timeout=3)
        except httpx.TransportError:
            return []
        if response.status_code == 503:  # it starts
            return []
        response.raise_for_status()
        return [each["id"] for each in response.json()["data"] if each.get("parent")]

    def claimed_adapters(self) -> list[set[str]]:
        """The adapters that the status named, in the order of time."""
        return [{name for name, _ in sample.claimed} for sample in self.samples]

    def lies(self) -> list[str]:
        """Claims that no engine confirmed near that moment, and adapters that engines listed unclaimed all the time."""
        found = []
        for sample in self.samples:
            near = [each.listed for each in self.samples if abs(each.at - sample.at) <= LATE]
            if wrong := sample.claimed - frozenset().union(*near):
                found.append(f"{sample.at:.0f}: {sorted(wrong)} claimed, but listed by no engine")
            if missing := frozenset.intersection(*near) - sample.claimed:
                found.append(f"{sample.at:.0f}: {sorted(missing)} listed by an engine, but not claimed")
        return found


def internal_token(service: Service) -> str:
    """The token by which a service's parts know each other."""
    secrets = service.json("get", "secrets", "-l", f"serving.bladellm.io/name={service.name}")["items"]
    [token] = [
        value for secret in secrets if "-internal-" in secret["metadata"]["name"] for value in secret["data"].values()
    ]
    return base64.b64decode(token).decode().strip()


def engine_addresses(service: Service) -> dict[str, str]:
    """Pod → IP address."""
    pods = service.pods("engine")
    return dict(zip(names(pods), (str(pod["status"].get("podIP", "")) for pod in pods), strict=True))
