"""The fields of ``spec.router``: how requests are taken, admitted, kept waiting, and given to engines."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from blade_operator.spec.model_fields import ServedName
from blade_operator.spec.pod_fields import PodTemplate, Resources
from blade_operator.spec.types import (
    Bytes,
    Duration,
    Fraction,
    Hint,
    Image,
    ListType,
    ObjectName,
    Preserved,
    Record,
    Unique,
)

Policy = Literal[
    "auto",
    "roundRobin",
    "random",
    "powerOfTwo",
    "leastRequest",
    "leastToken",
    "prefix",
    "kvAware",
    "loraAffinity",
    "session",
    "consistentHash",
]

_Origin = Annotated[
    str,
    StringConstraints(
        pattern=r"^(\*|[a-z][a-z0-9+.-]*://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?)$", max_length=256
    ),
    Hint("`*` or an origin like https://chat.example.com"),
]


class Limits(Record):
    """Upper bounds for requests; what is unset is not bounded. Several routers divide them among themselves."""

    requests_per_minute: int | None = Field(default=None, ge=1, le=1_000_000_000, description="Requests a minute.")
    tokens_per_minute: int | None = Field(
        default=None, ge=1, le=1_000_000_000, description="Tokens of prompts and answers together, a minute."
    )
    concurrent: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Requests at the same time, waiting ones included."
    )


class KeysSecret(Record):
    """A Secret with API keys."""

    name: ObjectName = Field(description="Name of the Secret, in the service's namespace.")


class Auth(Record):
    """Which clients may send requests."""

    keys_secret: KeysSecret = Field(
        description="Secret with API keys. Each entry is a file of keys and what they may do, as JSON with hashes, or "
        "one key. Requests without one of them get a 401. A change of it takes effect without a restart."
    )
    share_prefix_cache: bool = Field(
        default=False,
        description="Keys share what engines have cached of prompts. Faster where these are alike, and each can find "
        "out by time and usage what others have asked.",
    )


class Tls(Record):
    """TLS towards clients."""

    secret_name: ObjectName = Field(
        description="Secret of type `kubernetes.io/tls` in the service's namespace. Renewed certificates are taken up "
        "without a restart."
    )


class Queue(Record):
    """The request queue while engines are busy. It is shared fairly between API keys."""

    enabled: bool = Field(default=True, description="Whether requests queue in the router; else in engines alone.")
    endpoint_requests: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Requests an engine gets at the same time; more of them queue in the router. When unset as many as "
        "it reports to run.",
    )
    key_share: Fraction = Field(
        default="0.875",
        description="Share of all engines' slots that one API key may hold, a string like `0.875`. Others find some "
        'free. `"1"`: all of them. Without keys, or with one, all are for everybody.',
    )
    max_requests: int = Field(
        default=2048, ge=1, le=1_000_000, description="Requests that may queue; further ones get a 429."
    )
    max_bytes: Bytes = Field(default="256Mi", description="Size of their bodies together.")
    max_age: Duration = Field(default="1m", description="How long one may queue before it gets a 503.")


class Hold(Record):
    """Requests that come while no engine is ready: they wait instead of being refused."""

    max_requests: int = Field(
        default=256,
        ge=0,
        le=1_000_000,
        description="Requests that may wait; further ones get a 503. `0`: none may.",
    )
    max_bytes: Bytes = Field(default="64Mi", description="Size of their bodies together.")
    max_age: Duration = Field(default="10m", description="How long one may wait before it gets a 503.")


class Retry(Record):
    """Retries: when a request that one engine does not serve goes to another."""

    max_tries: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Engines that may work on one request (`--max_tries`; 3 when unset).",
    )
    first_byte_timeout: Duration | None = Field(
        default=None,
        description="Time until the first byte of an answer (`--first_byte_timeout`; 10m when unset). That is all of "
        "one that does not stream. `0s`: no limit.",
    )
    stall_timeout: Duration | None = Field(
        default=None,
        description="Longest silence in an answer that has begun (`--stall_timeout`; 5m when unset). `0s`: no limit.",
    )


class Cors(Record):
    """Which origins browsers may send requests from (CORS)."""

    allow_origins: Annotated[tuple[_Origin, ...], ListType("set"), Unique] = Field(
        min_length=1,
        max_length=64,
        strict=False,
        description="Origins like `https://chat.example.com`, or `*` for all.",
    )


_SAID_BY_REQUESTS: Final = frozenset({"model", "messages", "prompt", "input", "stream"})
_LENGTHS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def _are_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    """Routers refuse a whole configuration with such a default, its limits included."""
    if own := _SAID_BY_REQUESTS & fields.keys():
        raise ValueError(f"{min(own)} is what a request says itself; it has no default, remove it")
    return fields


class RoutedModel(Record):
    """What routers do for one of the names that requests put into `model`."""

    name: ServedName = Field(description="One of `spec.model.servedNames`; the service's name if empty.")
    aliases: Annotated[tuple[ServedName, ...], ListType("set"), Unique] = Field(
        default=(),
        max_length=16,
        strict=False,
        description="Other names for it. Engines need not know them: a change restarts nothing.",
    )
    defaults: Annotated[dict[str, Any], Preserved(), AfterValidator(_are_defaults)] = Field(
        default_factory=dict,
        description="Fields for requests that do not set them, e.g. `{temperature: 0.6}`.",
    )
    max_tokens: int | None = Field(
        default=None, ge=1, le=16777216, description="The most tokens a request may ask for."
    )
    limits: Limits | None = Field(default=None, description="For all clients of the model together.")

    @model_validator(mode="after")
    def _default_lengths_are_allowed(self) -> Self:
        for name in _LENGTHS:
            length = self.defaults.get(name)
            if self.max_tokens is not None and isinstance(length, int | float) and length > self.max_tokens:
                raise ValueError(f"defaults.{name} is {length}, more than maxTokens, {self.max_tokens}; lower it")
        return self


class Ui(Record):
    """The web UI."""

    enabled: bool = Field(default=True, description="Whether routers serve it at `/ui/`.")


class Router(Record):
    """The proxy in front of the engines."""

    replicas: int = Field(default=1, ge=1, le=64, description="Router pods.")
    scaling: Literal["Fixed", "External"] = Field(
        default="Fixed",
        description="`Fixed`: as many as `replicas` says. `External`: an autoscaler of yours, as an HPA, sets the "
        "replicas of the Deployment `NAME-router`; `replicas` is what it begins with.",
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes in each router pod (`--workers`). They share limits, and what they know of engines.",
    )
    policy: Policy = Field(
        default="auto",
        description="How an engine is chosen. `auto` weighs what each would have to compute of the prompt with its "
        "load.",
    )
    auth: Auth | None = Field(default=None, description="Who may ask; everybody who reaches the router when unset.")
    allow_client_priority: bool = Field(
        default=False,
        description="Without `auth`: requests may have a `priority` below 0, ahead of others; else it "
        "counts as 0 (`--allow_client_priority`). With `auth` each key has a bound of its own.",
    )
    tls: Tls | None = Field(default=None, description="Encryption towards clients; none when unset.")
    limits: Limits | None = Field(
        default=None, description="For all requests together. With `auth`, each key has limits of its own instead."
    )
    models: Annotated[tuple[RoutedModel, ...], ListType("map", key="name"), Unique] = Field(
        default=(), max_length=16, strict=False, description="Aliases, default parameters and limits by model name."
    )
    queue: Queue | None = Field(
        default=None,
        description="What waits in the router while engines are busy; when unset the defaults of its fields.",
    )
    hold: Hold = Field(default_factory=Hold, description="Requests that come while no engine is ready.")
    retry: Retry | None = Field(default=None, description="When a request goes to another engine.")
    slow_start: Duration | None = Field(
        default=None,
        description="How long a new engine gets less than its share, growing (`--slow_start`).",
    )
    stream_comment_interval: Duration | None = Field(
        default=None,
        description="Silence after which a stream gets a comment (`--stream_comment_interval`); `0s`: none.",
    )
    prefix_index_bytes: Bytes | None = Field(
        default=None,
        description="Memory of a router process for engines' prompts (`--prefix_index_bytes`).",
    )
    max_body_bytes: Bytes | None = Field(
        default=None,
        description="Largest request body, of engines as well (`--max_body_bytes`; 16Mi when unset).",
    )
    max_images: int | None = Field(
        default=None,
        ge=0,
        le=4096,
        description="Most images and videos of a request (`--max_images`; 64 when unset). `0`: any number.",
    )
    max_part_bytes: Bytes | None = Field(
        default=None,
        description="Largest picture, file or text in a body (`--max_part_bytes`), `1Mi` or more. Base64 counts, which "
        "is 4/3 of a file. As large as the body may be when unset.",
    )
    cors: Cors | None = Field(default=None, description="Which web pages may ask; none when unset.")
    access_log: bool = Field(
        default=False, description="One line of JSON for each request in the routers' output; never any prompt."
    )
    ui: Ui = Field(default_factory=Ui, description="The web UI.")
    image: Image = Field(default="", description="Router image; the operator release's own when empty.")
    resources: Resources | None = Field(
        default=None,
        description="CPU and memory of the router container. When unset: requests of 100m and, for each process, "
        "256Mi; a memory limit of 512Mi for each. What it leaves above 256Mi for each is for request bodies "
        "(`--body_budget_bytes`).",
    )
    pod_template: PodTemplate | None = Field(default=None, description="Laid over the router pods.")
