"""Random LLMServices, most with something a rule or a schema could refuse, for comparing us with an API server."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from blade_protocol.labels import API_VERSION, KIND

Spec = st.SearchStrategy[Any]


def _object(required: dict[str, Spec] | None = None, **optional: Spec) -> Spec:
    return st.fixed_dictionaries(required or {}, optional=optional)


def _mostly(good: Spec, bad: Spec) -> Spec:
    """``bad`` about one time in twenty, so that whole objects are often right."""
    return st.integers(0, 19).flatmap(lambda number: bad if number == 0 else good)


_junk: Spec = st.sampled_from([None, True, "", "x y", -1, 0, [], {}, 1 << 40, "é", "a/../b", "a" * 300])
_quantity = _mostly(st.sampled_from(["1", "500m", "4Gi", 2, "1.5"]), _junk)
_bytes = _mostly(st.sampled_from(["64Mi", "2Gi", 1 << 26]), st.sampled_from(["0", "1.5Gi", "4 GiB", -1, "m", "Mi"]))
_duration = _mostly(
    st.sampled_from(["30s", "10m", "1h30m", "24h"]), st.sampled_from(["25h", "10", "", "1d", "24h1s", "-1m", "h"])
)
_latency = _mostly(st.sampled_from(["500ms", "2s"]), st.sampled_from(["0ms", "1m", "", "5", 5]))
_name = _mostly(
    st.sampled_from(["qwen", "a", "qwen-3", "a-" + "b" * 38]), st.sampled_from(["a-" + "b" * 39, "1a", "a.b", "x" * 63])
)
_object_name = _mostly(
    st.sampled_from(["models", "a.b-c", "x"]), st.sampled_from(["Models", "-a", "a_b", "", "a" * 254])
)
_uri = _mostly(
    st.sampled_from(
        [
            *("file:///m", "hf://a/b", "hf://Qwen/Qwen3-8B", "pvc://models/a/b.c", "pvc://m"),
            *("modelscope://a/b", "s3://m.x/a/step=1/", "oss://m1/a", "oci://h:5000/a/b:v1"),
        ]
    ),
    st.sampled_from(
        ["file://m", "hf://a", "hf://a/b/c", "pvc:///x", "pvc://m/..", "pvc://m/", "s3://x", "hf://é/b", "file:///"]
    ),
)
_word = _mostly(st.sampled_from(["a", "qwen3:8b", "x/y", "b"]), st.sampled_from(["", "é", "a b"]))
_words = st.lists(_word, max_size=3)
_key = _mostly(st.sampled_from(["token", "a.b"]), st.sampled_from(["a b", ""]))
_env = st.lists(
    _object(
        {"name": st.sampled_from(["A", "B_1", "HF_TOKEN", "AWS_ACCESS_KEY_ID", "BLADE_X", "1A", "é"])},
        value=st.sampled_from(["", "x", 1]),
    ),
    max_size=2,
)
_labels = st.dictionaries(
    st.sampled_from(["team", "example.org/x", "serving.bladellm.io/role", "serving.bladellm.io"]),
    _mostly(st.sampled_from(["", "a", "A.b_c-1"]), st.sampled_from(["-a", "a b", "x" * 64, 1])),
    max_size=2,
)
_template = _object(
    metadata=_object(
        labels=_labels, annotations=st.dictionaries(st.just("n"), st.sampled_from(["", "x y"]), max_size=1)
    ),
    spec=_object(nodeSelector=st.just({"disk": "ssd"}), tolerations=st.just([{"operator": "Exists"}])),
)
_resources = _object(requests=_object(cpu=_quantity, memory=_quantity), limits=_object(cpu=_quantity, memory=_quantity))
_cache = _object(
    claimName=_object_name,
    size=_bytes,
    storageClassName=_object_name,
    accessModes=st.lists(st.sampled_from(["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"]), max_size=2),
)
_integer = st.sampled_from([0, 1, 2, 16, 64, 1000, 4097, -1])
_amount = _mostly(st.sampled_from(["1", "2.50", "0.05", "40"]), st.sampled_from(["0", "0.0", "-1", "1.", "", 3]))
_count = _mostly(st.sampled_from([1, 2, 64]), _integer)

_quantization = _mostly(
    st.sampled_from([{}, {"method": "int8"}, {"method": "int", "bits": 4}, {"kvCache": "fp8_e4m3"}]),
    _object(
        method=_mostly(st.sampled_from(["int", "int8", "int4", "w8a8"]), _junk),
        bits=st.sampled_from([4, 8, 3, "4"]),
        kvCache=_mostly(st.sampled_from(["no_quant", "int8", "mix_f852i4"]), _junk),
    ),
)

_gpus = st.one_of(
    st.sampled_from(
        [
            *({}, {"count": 1}, {"count": 2}, {"tensorParallel": 2}, {"count": 4, "pipelineParallel": 2}),
            {"count": 4, "nodes": 2, "topologyKey": "rack"},
            {"count": 2, "expertParallel": True, "customAllReduce": True},
        ]
    ),
    _object(
        count=st.sampled_from([0, 1, 1, 2, 65]),
        resource=st.sampled_from(["amd.com/gpu", "gpu", "a/b/c"]),
        tensorParallel=st.sampled_from([1, 2, 2, 0, 65]),
        expertParallel=_mostly(st.booleans(), _junk),
        pipelineParallel=_mostly(st.just(1), _integer),
        nodes=_mostly(st.just(1), _integer),
        topologyKey=_mostly(st.none(), st.just("rack")),
        customAllReduce=_mostly(st.booleans(), _junk),
    ),
)

_tracing = _object(
    {
        "endpoint": _mostly(
            st.sampled_from(["http://c:4318", "https://c.monitoring/otlp", "http://[::1]:65535", "http://c"]),
            st.sampled_from(["c:4318", "grpc://c:4317", "http://c:65536", "http://c:0", "http://c d/", None]),
        )
    },
    samplingRatio=_mostly(st.sampled_from(["0.01", "1"]), st.sampled_from(["0", "2", "", 0.5])),
)

_price = _mostly(st.sampled_from(["2.50", "0.1", "0"]), st.sampled_from(["-1", "1e3", "x", ""]))
_currency = _mostly(st.sampled_from(["EUR", "USD"]), st.sampled_from(["eur", "EURO"]))
_pricing = _mostly(
    st.one_of(
        _object({"currency": _currency, "perEngineHour": _price}),
        _object({"currency": _currency, "perGpuHour": _price}),
    ),
    _object({"currency": _currency}, perEngineHour=_price, perGpuHour=_price),
)

SPECS: Spec = _object(
    {
        "model": _object(
            {"uri": _uri},
            revision=_mostly(st.just("main"), st.sampled_from(["", "/x", "a b"])),
            servedNames=_words,
            cache=_cache,
            tokenSecretRef=_object({"name": _object_name}, key=_key),
            credentialsSecretRef=_object({"name": _object_name}),
            quantization=_quantization,
        )
    },
    engine=_object(
        image=_mostly(st.sampled_from(["", "x.org/a:1"]), st.sampled_from(["a b", ":x", "é"])),
        preset=_mostly(st.sampled_from(["latency", "throughput", "chat"]), st.sampled_from(["fast", "", None])),
        dtype=_mostly(st.sampled_from(["auto", "bfloat16"]), _junk),
        contextLength=_mostly(st.just(4096), _integer),
        maxNumSeqs=_integer,
        maxWaitingRequests=_integer,
        kvCacheBytes=_bytes,
        memoryFraction=st.sampled_from(["0.9", "1", "1.0", ".5", "0", "0.0", "1.1", "", "x", 0.9]),
        vision=_object(enabled=_mostly(st.booleans(), _junk), maxImagesPerRequest=_integer, encoderCacheBytes=_bytes),
        cudaGraphs=_object(
            enabled=_mostly(st.booleans(), _junk),
            batchSizes=st.lists(st.sampled_from([1, 2, 4, 8, 0, 4097]), max_size=4),
            maxBatchSize=_integer,
            tokenSizes=st.lists(st.sampled_from([16, 64, 256, 2048, 0, 65537]), max_size=4),
            maxTokens=_integer,
        ),
        quant=st.sampled_from(["none", "int8", "int4", "int2"]),
        enableTritonMla=_mostly(st.booleans(), _junk),
        lora=_object(maxGPU=_integer, maxCPU=_integer, maxRank=_integer),
        speculative=_object(
            method=st.sampled_from(["draft", "ngram", "lookahead", "eagle3", "mtp"]),
            draftModel=_object(
                {"uri": st.sampled_from(["hf://a/b", "file:///m", "pvc://c/d", "x"])},
                revision=_mostly(st.just("main"), st.just("a b")),
            ),
            steps=_integer,
            disableAboveBatch=_integer,
            ngram=_object(minMatch=_integer),
            lookahead=_object(windowSize=_integer, gramSize=_integer, guessSetSize=_integer),
        ),
        deterministic=_mostly(st.booleans(), _junk),
        task=_mostly(st.sampled_from(["generate", "embed", "score"]), _junk),
        pooling=_mostly(st.sampled_from(["last", "mean", "cls"]), _junk),
        chatTemplate=_object(
            inline=_mostly(st.sampled_from(["x", "{{ 1 }}\n"]), st.sampled_from(["", "x" * 32769])),
            configMapKeyRef=_object({"name": _object_name}, key=st.sampled_from(["a.jinja", "a b", ""])),
        ),
        toolCallParser=_mostly(st.sampled_from(["none", "hermes"]), _junk),
        reasoningParser=_mostly(st.sampled_from(["none", "qwen3"]), _junk),
        jsonWarmup=_mostly(st.booleans(), _junk),
        apiServers=_integer,
        extraArgs=st.lists(st.sampled_from(["--x", "--model", "--port=1", "--kv-cache-bytes=1", "4", ""]), max_size=2),
        env=_env,
        resources=_resources,
        gpus=_gpus,
        shmSize=_bytes,
        podTemplate=_template,
    ),
    check=_object(
        mode=st.sampled_from(["Enforce", "Warn", "Off", "off", False]),
        items=st.lists(st.sampled_from(["shm", "pbEnv", "memoryFit", "other"]), max_size=3),
    ),
    adapters=st.lists(
        _object(
            {
                "name": st.sampled_from(["sql", "x", "a b"]),
                "uri": st.sampled_from(["hf://a/b", "file:///m", "pvc://c/d", "x"]),
            },
            replicas=_integer,
            preload=_mostly(st.booleans(), _junk),
            pinned=_mostly(st.booleans(), _junk),
        ),
        max_size=2,
    ),
    replicas=_mostly(st.integers(0, 3), st.sampled_from([-1, 1001, "1", None])),
    router=_object(
        replicas=_integer,
        workers=_count,
        policy=st.sampled_from(["auto", "roundRobin", "random", "kvAware", "loraAffinity", "external"]),
        auth=_object(keysSecret=_object({"name": _object_name})),
        tls=_object({"secretName": _object_name}),
        limits=_object(requestsPerMinute=_count, tokensPerMinute=_count, concurrent=_count),
        models=st.lists(
            _object(
                {"name": st.sampled_from(["qwen", "a", "qwen-3"])},
                aliases=st.lists(st.sampled_from(["qwen", "c", "d", "a b"]), max_size=2),
                defaults=_mostly(st.just({"temperature": 0.5, "stop": ["x"]}), _junk),
                maxTokens=_count,
                limits=_object(concurrent=_count),
            ),
            max_size=2,
        ),
        queue=_object(
            enabled=_mostly(st.booleans(), _junk),
            endpointRequests=_count,
            maxRequests=_count,
            maxBytes=_bytes,
            maxAge=_duration,
        ),
        hold=_object(maxRequests=_count, maxBytes=_bytes, maxAge=_duration),
        retry=_object(maxTries=_count, firstByteTimeout=_duration, stallTimeout=_duration),
        slowStart=_duration,
        streamCommentInterval=_duration,
        allowClientPriority=_mostly(st.booleans(), _junk),
        prefixIndexBytes=_bytes,
        maxBodyBytes=_bytes,
        maxImages=_integer,
        maxPartBytes=_bytes,
        cors=_object(
            allowOrigins=st.lists(
                _mostly(st.sampled_from(["*", "https://a.b:8"]), st.sampled_from(["a.b", ""])), max_size=2
            )
        ),
        accessLog=_mostly(st.booleans(), _junk),
        ui=_mostly(st.builds(dict, enabled=_mostly(st.booleans(), _junk)), _junk),
        resources=_resources,
        podTemplate=_template,
    ),
    rollout=_object(
        maxSurge=st.integers(0, 1),
        maxUnavailable=st.integers(0, 1),
        drainTimeout=_duration,
        revisionHistoryLimit=_integer,
        canary=_object(
            steps=st.lists(_mostly(st.integers(1, 99), _junk), max_size=3, unique_by=str),
            interval=_duration,
            minRequests=_count,
            latencyTolerance=_integer,
            answerTolerance=_integer,
            shadow=_object(share=_mostly(st.integers(1, 100), _junk), minRequests=_count),
        ),
    ),
    pricing=_pricing,
    security=_object(networkPolicy=_mostly(st.booleans(), _junk)),
    tracing=_tracing,
    logFormat=_mostly(st.sampled_from(["text", "json"]), _junk),
    scaling=_object(
        mode=_mostly(st.sampled_from(["Fixed", "Concurrency", "SLO", "External", "Advisory"]), _junk),
        min=st.sampled_from([0, 1, 1, 2, -1]),
        max=st.sampled_from([1, 2, 4, 1001]),
        target=_object(concurrency=_count),
        slo=_object(ttft=_latency, tpot=_latency, percentile=st.sampled_from([50, 90, 99, 95])),
        behavior=_object(upPercent=_integer, downPercent=_count, downDelay=_duration),
        idleToZero=_duration,
        schedules=st.lists(
            _object(
                {"cron": st.sampled_from(["0 8 * * 1-5", "never"]), "duration": _duration}, min=_integer, max=_count
            ),
            max_size=2,
        ),
        maxGPUs=_count,
        cost=_object(engine=_amount, max=_amount),
    ),
)

SERVICES: Spec = st.builds(
    lambda name, spec: {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}, _name, SPECS
)
"""Objects as a person would apply them: defaults not filled in."""
