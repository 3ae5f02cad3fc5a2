"""Engine objects: the pod template a revision stands for, and the Service that finds all engines.

A pod fetches the model (unless the engine reads it where it is), checks the environment, then serves. The template
carries no revision yet: the revision is the template's own hash, put in when a workload is made of it.
"""

from __future__ import annotations

from typing import Any

from blade_operator.model.objects import Object
from blade_operator.model.pods import CHECK, ENGINE, FETCH
from blade_operator.model.telemetry import telemetry_env
from blade_operator.render.chat_template import (
    template_annotations,
    template_flags,
    template_mounts,
    template_volumes,
)
from blade_operator.render.meta import (
    HOSTNAME,
    Defaults,
    container_security,
    disruption_budget,
    engine_name,
    http_probe,
    labels,
    make,
    pod_security,
    resources,
    selector,
    service_account,
    spread,
    tmp_volume,
    with_requests,
)
from blade_operator.render.network import INTERNAL_PORT
from blade_operator.render.overlay import lay_over
from blade_operator.render.storage import (
    download_env,
    draft_argument,
    model_argument,
    model_mounts,
    model_volumes,
    one_machine,
)
from blade_operator.render.token_secret import engine_token_env, token_env, token_mounts, token_volumes
from blade_operator.render.workloads import (
    any_engine_pod,
    machine_env,
    machine_flags,
    members_service,
    pod_annotations,
    pod_env,
    pod_flags,
    pod_ports,
    role_of_pods,
)
from blade_operator.spec.fields import CheckItemName, CudaGraphs, Vision
from blade_operator.spec.parse import LLMService
from blade_operator.spec.pod_fields import Gpus, ResourceList
from blade_operator.spec.quantity import parse_bytes, parse_duration
from blade_operator.spec.speculative_fields import Lookahead
from blade_protocol import environment, paths
from blade_protocol.labels import RESTARTED_AT, ROLE_ENGINE
from blade_protocol.ports import ENGINE_PORT

GRACE_MARGIN = 30
"""Seconds of the grace period beyond the drain time-out, to end streams and processes."""
MILLICORES_A_RANK = 250
MEBIBYTES_A_RANK = 512
"""Requests of an engine for each of its ranks unless the spec says otherwise: small models run with it. What a model
really takes, the check reports, and only the user can say how much of it is to be kept free."""
DECODE_ALGO = {"draft": "sps", "ngram": "ngram", "lookahead": "look_ahead", "eagle3": "eagle3", "mtp": "mtp"}
"""Methods of speculative decoding, as the engine's flag says them."""
CHECK_ITEMS: dict[CheckItemName, str] = {
    "shm": "check_shm",
    "pbEnv": "check_pb_env",
    "flopsDiff": "check_flops_diff",
    "memoryFit": "check_memory_fit",
    "modelFiles": "check_model",
}


def pod_template(service: LLMService, defaults: Defaults, claim: Object | None = None) -> Object:
    """The engine's pod template; what changes it is a new revision. ``claim``: the operator's own, if it is there."""
    spec = service.spec
    init = ([_fetch(service, defaults)] if service.spec.model.downloaded else []) + (
        [_check(service, defaults)] if spec.check.mode != "Off" and spec.check.items else []
    )
    metadata: Object = {"labels": labels(service, role_of_pods(service))}
    annotations = template_annotations(service) | pod_annotations(service)
    if restarted := service.annotations.get(RESTARTED_AT):
        annotations[RESTARTED_AT] = restarted
    if annotations:
        metadata["annotations"] = annotations
    template = {
        "metadata": metadata,
        "spec": {
            "serviceAccountName": engine_name(service),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "shareProcessNamespace": True,  # as process 1 a program that still starts would miss its SIGTERM
            "terminationGracePeriodSeconds": parse_duration(spec.rollout.drain_timeout) + GRACE_MARGIN,
            "securityContext": pod_security(defaults),
            **_placement(service, claim),
            **({"initContainers": init} if init else {}),
            "containers": [_engine(service, defaults)],
            "volumes": [
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(spec.engine.shm_size)}},
                tmp_volume(),
                *model_volumes(service),
                *template_volumes(service),
                *token_volumes(service, defaults),
            ],
        },
    }
    return lay_over(template, spec.engine.pod_template)


def _placement(service: LLMService, claim: Object | None) -> Object:
    one_pod = service.spec.engine.gpus.nodes == 1
    engines = {"matchLabels": selector(service, ROLE_ENGINE)} if one_pod else any_engine_pod(service)
    if not one_machine(service, claim):
        return {"topologySpreadConstraints": spread(engines)}
    together = {"topologyKey": HOSTNAME, "labelSelector": engines}
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [together]}}}


def engine_objects(service: LLMService, groups: bool = False, standing_by: int = 0) -> list[Object]:
    """Objects that all revisions share: the headless Service the router watches, service account, disruption budget.

    Args:
        groups: engines on several machines are there. A machine that is drained takes one pod with it, and so one
            engine: the others of its group count as disrupted until it is whole again.
        standing_by: engines that are not ready because nobody needs them. They block no eviction of another.
    """
    name = engine_name(service)
    spec = {
        "clusterIP": "None",
        "selector": selector(service, ROLE_ENGINE),
        "ports": [
            {"name": "http", "port": ENGINE_PORT, "targetPort": "http"},
            {"name": "internal", "port": INTERNAL_PORT, "targetPort": "internal"},
        ],
    }
    groups = groups or service.spec.engine.gpus.nodes > 1
    engines = any_engine_pod(service) if groups else {"matchLabels": selector(service, ROLE_ENGINE)}
    return [
        service_account(service, name, ROLE_ENGINE),
        make(service, "v1", "Service", name, ROLE_ENGINE, spec=spec),
        *([members_service(service)] if groups else []),
        disruption_budget(service, name, ROLE_ENGINE, engines, 1 + standing_by),
    ]


def _engine(service: LLMService, defaults: Defaults) -> Object:
    engine = service.spec.engine
    args = ["--model", model_argument(service), "--served_model_name", *service.served_names]
    args += ["--host", "$(BLADE_HOST)", "--port", "$(BLADE_HTTP_PORT)", "--internal_port", "$(BLADE_INTERNAL_PORT)"]
    args += ["--drain_timeout", str(parse_duration(service.spec.rollout.drain_timeout))]
    args += _flag("dtype", None if engine.dtype == "auto" else engine.dtype) + _memory_flags(service)
    args += ["--enable_custom_allreduce=true"] if engine.gpus.custom_all_reduce else []
    args += ["--enable_triton_mla=true"] if engine.enable_triton_mla else []
    args += ["--deterministic=true"] if engine.deterministic else []
    args += _text_flags(service)
    args += _flag("max_waiting_requests", engine.max_waiting_requests)
    args += _flag("max_body_bytes", _bytes(service.spec.router.max_body_bytes))
    vision = engine.vision or Vision()
    args += _flag("max_images_per_request", vision.max_images_per_request if vision.enabled else None)
    args += _flag("api_server_count", None if engine.api_servers == 1 else engine.api_servers)
    args += pod_flags(service)
    args += engine.extra_args
    return _container(
        service,
        defaults,
        ENGINE,
        ["blade_llm_server"],
        args,
        {
            "BLADE_HOST": "0.0.0.0",
            "BLADE_HTTP_PORT": str(ENGINE_PORT),
            "BLADE_INTERNAL_PORT": str(INTERNAL_PORT),
            **pod_env(service),
            **engine_token_env(service, defaults),
            **telemetry_env(service, "blade_llm"),
            # Its routers bound priorities. Not a flag, so that an older image starts, too.
            environment.ALLOW_CLIENT_PRIORITY: "1",
            # Adapters are downloaded by engines that run.
            **download_env(service, offline=service.spec.engine.lora is None),
        },
        mounts=[*template_mounts(service), *token_mounts(defaults)],
        ports=[
            {"name": "http", "containerPort": ENGINE_PORT},
            {"name": "internal", "containerPort": INTERNAL_PORT},
            *pod_ports(service),
        ],
        # Loading and warming up may take half an hour; liveness only starts afterwards.
        startupProbe=http_probe(paths.HEALTH, period=1, failures=1800),
        readinessProbe=http_probe(paths.HEALTH, period=1, failures=4),  # what is woken is ready within a second
        livenessProbe=http_probe(paths.LIVE, period=10, failures=6, timeout=5),
        **resources(with_requests(engine.resources, _requests(engine.gpus.ranks_per_node)), engine.gpus),
    )


def _requests(ranks: int) -> ResourceList:
    return ResourceList(cpu=f"{MILLICORES_A_RANK * ranks}m", memory=f"{MEBIBYTES_A_RANK * ranks}Mi")


def _fetch(service: LLMService, defaults: Defaults) -> Object:
    return _container(
        service,
        defaults,
        FETCH,
        ["blade_llm_fetch"],
        ["--model", model_argument(service), *_flag("draft.model", draft_argument(service))],
        # It reports its progress on the internal port, where the engine will report its state (and which it declares).
        {
            "BLADE_HOST": "0.0.0.0",
            "BLADE_INTERNAL_PORT": str(INTERNAL_PORT),
            **token_env(defaults),
            **download_env(service, offline=False),
        },
        mounts=token_mounts(defaults),
        **resources(service.spec.engine.resources),
    )


def _check(service: LLMService, defaults: Defaults) -> Object:
    """Of the pod by itself: one that is made anew would wait for the others' checks, which are over."""
    check, engine = service.spec.check, service.spec.engine
    args = ["--items", ",".join(CHECK_ITEMS[item] for item in check.items), "--model", model_argument(service)]
    args += ["--mode", check.mode.lower()]
    args += _flag("dtype", None if engine.dtype == "auto" else engine.dtype) + _memory_flags(service)
    args += _text_flags(service) + machine_flags(service)
    env = {**machine_env(service), **download_env(service, offline=True)}
    # The engine's limits and devices: a pod's request is the larger of both, so the check costs no other GPU.
    return _container(
        service,
        defaults,
        CHECK,
        ["blade_llm_check"],
        args,
        env,
        mounts=template_mounts(service),
        **resources(engine.resources, engine.gpus),
    )


def _container(
    service: LLMService,
    defaults: Defaults,
    name: str,
    command: list[str],
    args: list[str],
    env: dict[str, Any],
    *,
    mounts: list[Object] | None = None,
    **more: Any,
) -> Object:
    """One container of an engine pod; a value in ``env`` is a string or a source (``valueFrom``)."""
    engine = service.spec.engine
    env = env | {variable.name: variable.value for variable in engine.env}
    return {
        "name": name,
        "image": engine.image or defaults.engine_image,
        "command": command,
        "args": args,
        **({"env": [_variable(key, value) for key, value in env.items()]} if env else {}),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "tmp", "mountPath": "/tmp"},
            *model_mounts(service),
            *(mounts or []),
        ],
        **more,
    }


def _variable(name: str, value: Any) -> Object:
    return {"name": name, "value": value} if isinstance(value, str) else {"name": name, "valueFrom": value}


def _text_flags(service: LLMService) -> list[str]:
    """Flags that shape requests and responses; the check gets the same."""
    engine = service.spec.engine
    return (
        template_flags(service)
        + _flag("task", None if engine.task == "generate" else engine.task)
        + _flag("pooling", engine.pooling)
        + _flag("tool_call_parser", engine.tool_call_parser)
        + _flag("reasoning_parser", engine.reasoning_parser)
        + (["--enable_json_warmup=true"] if engine.json_warmup else [])
    )


def _memory_flags(service: LLMService) -> list[str]:
    """Flags that decide the memory plan; the check gets the same."""
    model, engine = service.spec.model, service.spec.engine
    return (
        _flag("preset", engine.preset)
        + _flag("max_model_len", engine.context_length)
        + _flag("max_num_seqs", engine.max_num_seqs)
        + _flag("kv_cache_bytes", _bytes(engine.kv_cache_bytes))
        + _flag("max_gpu_memory_utilization", engine.memory_fraction)
        + _vision_flags(engine.vision or Vision())
        + _rank_flags(engine.gpus)
        + _flag("model_impl", None if engine.model_impl == "auto" else engine.model_impl)
        + _flag("quant", None if service.spec.quant == "none" else service.spec.quant)
        + _flag("kv_cache_quant", None if model.kv_cache == "no_quant" else model.kv_cache)
        + _lora_flags(service)
        + _speculative_flags(service)
        + _graph_flags(engine.cuda_graphs or CudaGraphs())
    )


def _vision_flags(vision: Vision) -> list[str]:
    if not vision.enabled:
        return ["--with_visual=false"]
    return _flag("encoder_cache_bytes", _bytes(vision.encoder_cache_bytes))


def _rank_flags(gpus: Gpus) -> list[str]:
    return [
        *_flag("tensor_parallel_size", None if gpus.tensor_ranks == 1 else gpus.tensor_ranks),
        *(["--enable_expert_parallel=true"] if gpus.expert_parallel else []),
        *_flag("pipeline_parallel_size", None if gpus.pipeline_parallel == 1 else gpus.pipeline_parallel),
    ]


def _lora_flags(service: LLMService) -> list[str]:
    lora = service.spec.engine.lora
    if lora is None:
        return []
    return [
        "--enable_lora=true",
        *_flag("max_loras", lora.max_gpu),
        *_flag("max_cpu_loras", lora.max_cpu),
        *_flag("max_lora_rank", lora.max_rank),
        *_flag("lora_dtype", None if lora.dtype == "auto" else lora.dtype),
    ]


def _speculative_flags(service: LLMService) -> list[str]:
    speculative = service.spec.engine.speculative
    if speculative is None:
        return []
    return [
        *_flag("decode_algo", DECODE_ALGO[speculative.method]),
        *_flag("gamma", speculative.steps),
        *_flag("speculative_disable_by_batch_size", speculative.disable_above_batch),
        *_flag("ngram_min_match", None if speculative.ngram is None else speculative.ngram.min_match),
        *_flag("draft.model", draft_argument(service)),
        *([] if speculative.lookahead is None else _lookahead_flags(speculative.lookahead)),
    ]


def _lookahead_flags(lookahead: Lookahead) -> list[str]:
    return [
        *_flag("look_ahead_window_size", lookahead.window_size),
        *_flag("look_ahead_gram_size", lookahead.gram_size),
        *_flag("guess_set_size", lookahead.guess_set_size),
    ]


def _graph_flags(graphs: CudaGraphs) -> list[str]:
    if not graphs.enabled:
        return ["--disable_cuda_graph=true"]
    sizes = ["--cuda_graph_batch_sizes", *map(str, graphs.batch_sizes)] if graphs.batch_sizes else []
    tokens = ["--cuda_graph_token_sizes", *map(str, graphs.token_sizes)] if graphs.token_sizes else []
    return [
        *sizes,
        *_flag("cuda_graph_max_batch_size", graphs.max_batch_size),
        *tokens,
        *_flag("cuda_graph_max_tokens", graphs.max_tokens),
    ]


def _bytes(quantity: int | str | None) -> int | None:
    return None if quantity is None else parse_bytes(quantity)


def _flag(name: str, value: object) -> list[str]:
    return [] if value is None else [f"--{name}", str(value)]
