"""Which traces are recorded: the same as by OpenTelemetry's own samplers."""

import itertools
import random

import pytest
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from blade_router.http.trace_context import TraceSampler
from blade_telemetry.options import read_options, traces_url
from blade_telemetry.sampling import Sampling, read_sampling


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.3, 1.0])
def test_ratios_decide_as_opentelemetrys_sampler_does(ratio: float) -> None:
    numbers = random.Random(0)
    theirs, ours = TraceIdRatioBased(ratio), Sampling(ratio)
    for _ in range(2000):
        trace_id = numbers.getrandbits(128)
        expected = theirs.should_sample(None, trace_id, "x").decision.is_sampled()
        assert ours.samples(trace_id) is expected
        assert TraceSampler(ours.bound, False).samples(b"%032x" % trace_id, True) is expected


def test_new_traces_begin_in_the_ratio_and_every_program_would_record_them() -> None:
    sampling = Sampling(0.25)
    sampler = TraceSampler(sampling.bound)
    traces = [trace for trace in (sampler.begin() for _ in range(4000)) if trace is not None]
    assert 800 < len(traces) < 1200
    assert len({trace.trace_id for trace in traces}) == len(traces)
    assert all(trace.sampled and sampling.samples(int(trace.trace_id, 16)) for trace in traces)
    assert not any(TraceSampler(Sampling(0.0).bound).begin() for _ in range(100))


@pytest.mark.parametrize(
    ("ratio", "recorded", "in_a_row"), [(0.5, 20_000, 10_000), (0.1, 4_000, 400), (1.0, 40_000, 39_999)]
)
def test_each_new_trace_is_recorded_whatever_became_of_the_last(ratio: float, recorded: int, in_a_row: int) -> None:
    random.seed(0)
    sampler = TraceSampler(Sampling(ratio).bound)
    begun = [sampler.begin() is not None for _ in range(40_000)]
    assert sum(begun) == pytest.approx(recorded, rel=0.05)
    assert sum(a and b for a, b in itertools.pairwise(begun)) == pytest.approx(in_a_row, rel=0.2)


def test_a_request_that_is_not_recorded_draws_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(0)
    sampler = TraceSampler(Sampling(1e-9).bound)
    for name in ("random", "getrandbits", "randrange"):
        monkeypatch.setattr(random, name, lambda *_: pytest.fail("a number was drawn"))
    assert not any(sampler.begin() for _ in range(1000))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Sampling(1.0, True)),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, Sampling(0.0, False)),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, Sampling(0.0, True)),
        ({"OTEL_TRACES_SAMPLER": "ALWAYS_ON"}, Sampling(1.0, False)),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.2"}, Sampling(0.2, False)),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}, Sampling(1.0, True)),
    ],
)
def test_the_environment_says_it_as_for_every_sdk(environment: dict[str, str], expected: Sampling) -> None:
    assert read_sampling(None, environment) == expected
    assert read_sampling(0.5, environment) == Sampling(0.5), "a flag counts more"


@pytest.mark.parametrize("environment", [{"OTEL_TRACES_SAMPLER": "all"}, {"OTEL_TRACES_SAMPLER_ARG": "2"}])
def test_what_the_environment_gets_wrong_is_named(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="OTEL_TRACES_SAMPLER"):
        read_sampling(None, {"OTEL_TRACES_SAMPLER": "traceidratio", **environment})


def test_tracing_is_off_unless_somebody_says_where_to() -> None:
    assert read_options(None, 0.5, {}) is None
    assert read_options(None, None, {"OTEL_TRACES_SAMPLER": "always_on"}) is None
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}
    found = read_options(None, None, given)
    assert found is not None
    assert found.endpoint is None, "the exporter reads the environment"
    assert read_options(None, None, {**given, "OTEL_TRACES_EXPORTER": "none"}) is None
    assert read_options("http://c:4318", None, {"OTEL_SDK_DISABLED": "true"}) is None


def test_a_collectors_url_gets_the_path_of_traces() -> None:
    assert traces_url("http://c:4318") == traces_url("http://c:4318/") == "http://c:4318/v1/traces"
    assert traces_url("https://c/otlp/v1/traces") == "https://c/otlp/v1/traces"
    for wrong in ("c:4318", "grpc://c:4317", "http://", "http://c:no"):
        with pytest.raises(ValueError, match="is not the URL of a collector"):
            traces_url(wrong)
