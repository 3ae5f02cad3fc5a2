"""``blade_llm_server``: check everything that can be checked at once, let the engine process load the model, serve.

What a user can put right (a port in use, a folder without a model, too little memory) ends with one line and status 1,
before the model is loaded wherever that is possible; wrong flags end with status 2. The engine process imports torch
while this process imports what reads models, and loads the model while this one imports the HTTP stack.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blade_llm.cli.presets import use_preset
from blade_llm.cli.progress.download import download_progress
from blade_llm.cli.server_flags import memory_fields, text_fields
from blade_llm.cli.vllm_flags import ServerFlagParser
from blade_llm.config import EngineConfig, SpeculativeConfig
from blade_llm.engine.launch import BUILD, MAX_SOCKET_DIR_BYTES, EngineHandle
from blade_llm.engine.messages import EngineReady
from blade_llm.engine.nodes.address import parse_address
from blade_llm.engine.start import log_to_stderr
from blade_llm.models.errors import ModelFilesError
from blade_llm.server.http.internal_token import InternalToken
from blade_llm.server.http.sockets import share_port
from blade_llm.text.errors import TokenizerFilesError
from blade_protocol import environment, ports
from blade_telemetry.export import TracingUnavailableError, require_opentelemetry
from blade_telemetry.options import ENDPOINTS, read_options
from blade_telemetry.sampling import ARGUMENT, SAMPLER

if TYPE_CHECKING:  # what reads models, tokenizer and HTTP stack are imported while the engine process starts
    from blade_llm.api.common.response_store import ResponseStoreOptions
    from blade_llm.api.common.served_model import ModelSource, ServedModel
    from blade_llm.api.telemetry.payload_log import PayloadOptions
    from blade_llm.models.config import ModelConfig
    from blade_llm.server.http.access import AccessRules

PROGRAM: Final = "blade_llm_server"
_log: Final = logging.getLogger(__name__)
_LOOPBACK: Final = "127.0.0.1"
_ENGINE_FIELDS: Final = (
    *("max_waiting_requests", "preempt_strategy", "num_threads", "deterministic", "enable_triton_mla"),
    *("enable_custom_allreduce", "load_format", "packed_cache_dir", "packed_cache_bytes", "tokenizer_dir"),
    *("enable_json_warmup", "nnodes", "node_rank", "dist_timeout"),
)
"""Flags that are fields of ``EngineConfig``, beside those of :func:`memory_fields`."""


class StartError(Exception):
    """Something the user can put right; the message is all they need."""


def main(argv: Sequence[str] | None = None, *, build: str = BUILD) -> int:
    """Entry point. ``build`` is the function that makes the engine core; tests give a fake one.

    Status: 0 after SIGTERM or Ctrl-C, 1 when it cannot start or the engine dies, 2 for wrong flags.
    """
    started = time.perf_counter()
    gc.disable()  # until the server runs: an import makes much and frees little
    parser = ServerFlagParser(PROGRAM)
    flags = parser.parse(argv)
    if preset := use_preset(parser, flags):
        print(preset, flush=True)
    _set_environment(flags)
    log_to_stderr(flags["log_level"])
    for warning in parser.warnings:
        _log.warning("%s", warning)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the server handles it
    try:
        return _run(flags, build, started)
    except (StartError, ModelFilesError, TokenizerFilesError) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        gc.enable()


def _run(flags: Mapping[str, Any], build: str, started: float) -> int:
    _check_adapter_flags(flags)
    _check_machine_flags(flags)
    _check_tracing()
    token_file = _token_file()
    if flags["node_rank"]:
        return _follow(flags, token_file)
    public, internal = _bind_ports(flags, loopback_only=token_file is None)
    engine = EngineHandle(
        build=build, log_level=flags["log_level"], socket_dir=_socket_dir(flags["worker_socket_path"])
    )
    try:
        folder, model_config = _find_model(flags)
        from blade_llm.api.common.served_model import load_served_model

        source = _model_source(flags, folder, model_config)
        model = load_served_model(source)
        from blade_llm.cli.images.serving import image_serving

        try:
            config = _engine_config(flags, folder, model)
            images = image_serving(flags, folder, model_config, model.tokenizer)
        except ValueError as error:  # what does not go together
            raise StartError(str(error)) from None
        engine.start(config)
        import uvloop

        from blade_llm.cli.report import print_arguments, print_ready
        from blade_llm.server.http.limits import http_limits
        from blade_llm.server.supervisor import Ports, PortTakenError, ServerOptions, run_server

        print_arguments(flags)
        options = ServerOptions(
            drain_timeout=flags["drain_timeout"],
            live_timeout=flags["live_timeout"],
            log_level=flags["log_level"],
            strict_fields=flags["strict_fields"],
            metric_aliases=flags["metric_aliases"],
            responses=_response_store(flags),
            payloads=_payload_log(flags),
            images=images,
        )

        def on_ready(ready: EngineReady) -> None:
            print_ready(ready, public[0], internal, time.perf_counter() - started)

        limits = http_limits(flags["max_connections"], flags["max_body_bytes"], flags["stream_comment_interval"])
        public_rules, internal_rules = _access_rules(flags, token_file, public[0], internal)
        listen = Ports(public, internal, public_rules, internal_rules, limits)
        try:
            failure = uvloop.run(run_server(engine, listen, model, source, options, on_ready))
        except PortTakenError as error:
            raise StartError(f"{error}; give another --port or --internal_port") from None
        finally:
            shutil.rmtree(options.responses.folder, ignore_errors=True)
    finally:
        engine.close()
    if failure is None:
        return 0
    if failure.traceback:
        print(failure.traceback, file=sys.stderr)
    raise StartError(failure.message)


def _follow(flags: Mapping[str, Any], token_file: str | None) -> int:
    """Run the ranks of a machine that is not machine 0, and answer probes."""
    public = _bind(_host(flags), flags["port"], "--port")
    folder, model_config = _find_model(flags)
    import uvloop

    from blade_llm.api.common.served_model import load_served_model
    from blade_llm.cli.report import print_arguments, print_probes
    from blade_llm.server.follower import run_follower
    from blade_llm.server.http.limits import http_limits
    from blade_llm.server.supervisor import PortTakenError, ServerOptions

    try:
        config = _engine_config(flags, folder, load_served_model(_model_source(flags, folder, model_config)))
    except ValueError as error:
        raise StartError(str(error)) from None
    print_arguments(flags)
    options = ServerOptions(drain_timeout=flags["drain_timeout"], log_level=flags["log_level"])
    limits = http_limits(flags["max_connections"], flags["max_body_bytes"])
    rules, _ = _access_rules(flags, token_file, public, public)
    try:
        failure = uvloop.run(run_follower(config, public, rules, limits, options, lambda: print_probes(public)))
    except PortTakenError as error:
        raise StartError(f"{error}; give another --port") from None
    if failure is not None:
        raise StartError(failure)
    return 0


def _set_environment(flags: Mapping[str, Any]) -> None:
    """Pass on what every process of the server reads from the environment."""
    if flags["log_format"] is not None:
        os.environ[environment.LOG_FORMAT] = flags["log_format"]
    if flags["otlp_traces_endpoint"] is not None:
        os.environ[ENDPOINTS[0]] = flags["otlp_traces_endpoint"]
    if flags["trace_sampling"] is not None:
        os.environ |= {SAMPLER: "parentbased_traceidratio", ARGUMENT: str(flags["trace_sampling"])}


def _check_tracing() -> None:
    try:
        if read_options(None, None) is not None:
            require_opentelemetry()
    except (ValueError, TracingUnavailableError) as error:
        raise StartError(str(error)) from None


def _check_machine_flags(flags: Mapping[str, Any]) -> None:
    if flags["nnodes"] == 1 and flags["node_rank"]:
        raise StartError(f"--node_rank {flags['node_rank']} needs --nnodes, the number of machines")
    if flags["nnodes"] > 1 and flags["dist_init_addr"]:
        try:
            parse_address(flags["dist_init_addr"])
        except ValueError as error:
            raise StartError(f"--{error}") from None


def _check_adapter_flags(flags: Mapping[str, Any]) -> None:
    for name in ("lora_modules", "lora_allowed_roots", "allow_runtime_lora_updating"):
        if flags[name] and not flags["enable_lora"]:
            raise StartError(f"--{name} needs --enable_lora; give it, or leave --{name} out")
    if flags["max_cpu_loras"] is not None and flags["max_cpu_loras"] < flags["max_loras"]:
        raise StartError(
            f"--max_cpu_loras {flags['max_cpu_loras']} is less than --max_loras {flags['max_loras']}; raise it"
        )


def _response_store(flags: Mapping[str, Any]) -> ResponseStoreOptions:
    from blade_llm.api.common.response_store import ResponseStoreOptions

    parent = flags["worker_socket_path"] or tempfile.gettempdir()
    return ResponseStoreOptions(
        folder=str(Path(parent, f"blade_llm-responses-{secrets.token_hex(16)}")),
        max_bytes=flags["response_store_bytes"],
        seconds=flags["response_store_time"],
    )


def _payload_log(flags: Mapping[str, Any]) -> PayloadOptions | None:
    """What to keep of prompts and outputs; None: nothing."""
    from blade_llm.api.telemetry.payload_log import STDOUT, PayloadOptions, check_patterns, open_private

    if (target := flags["log_payloads"]) is None:
        return None
    patterns = tuple(flags["payload_redact"] or ())
    try:
        check_patterns(patterns)
        if target != STDOUT:
            os.close(open_private(target))
    except ValueError as error:
        raise StartError(f"--payload_redact: {error}") from None
    except OSError as error:
        raise StartError(f"--log_payloads {target}: {error.strerror}; name a file that can be written") from None
    return PayloadOptions(
        target=target,
        sampling=flags["payload_sampling"],
        patterns=patterns,
        record_bytes=flags["payload_record_bytes"],
        file_bytes=flags["payload_file_bytes"],
    )


def _socket_dir(folder: str | None) -> Path | None:
    if folder is not None and not Path(folder).is_dir():
        raise StartError(f"--worker_socket_path {folder}: no such folder")
    parent = folder or tempfile.gettempdir()
    if len(os.fsencode(parent)) > MAX_SOCKET_DIR_BYTES:
        raise StartError(f"{parent} is too long for the path of a socket; give --worker_socket_path a shorter one")
    return None if folder is None else Path(folder)


def _bind_ports(flags: Mapping[str, Any], *, loopback_only: bool) -> tuple[list[socket.socket], socket.socket]:
    """The public sockets, one for each API-server process, and the internal one.

    Without a token anyone who reaches the internal one may drain this server.
    """
    port, internal_port = flags["port"], flags["internal_port"]
    if internal_port is None:
        internal_port = port + ports.INTERNAL_PORT_OFFSET if port else 0
        if internal_port > 65535:
            raise StartError(f"port {port} + {ports.INTERNAL_PORT_OFFSET} is no port; give --internal_port")
    host = _host(flags)
    internal_host = _LOOPBACK if loopback_only else host
    public, internal = _bind(host, port, "--port"), _bind(internal_host, internal_port, "--internal_port")
    try:
        return share_port(public, flags["api_server_count"]), internal
    except OSError as error:
        raise StartError(
            f"cannot open a socket for each API-server process: {error.strerror}; "
            "lower --api_server_count, or give another --port"
        ) from None


def _bind(host: str, port: int, flag: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        if isinstance(error, socket.gaierror):
            raise StartError(f"--host {host}: {error.strerror}") from None
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"port {port} on {host} is in use; give another {flag}, or stop what listens there"
            ) from None
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror}; change --host or {flag}") from None
    return sock


def _host(flags: Mapping[str, Any]) -> str:
    """The address to listen on. Nobody else's machine is let in unless somebody says so: an image does."""
    return flags["host"] or os.environ.get(environment.HOST) or _LOOPBACK


def _access_rules(
    flags: Mapping[str, Any], token_file: str | None, public: socket.socket, internal: socket.socket
) -> tuple[AccessRules, AccessRules]:
    """Who may use the public and the internal port."""
    from blade_llm.server.http.access import AccessRules, allowed_hosts

    host, more = _host(flags), flags["allowed_hosts"]
    return (
        AccessRules(
            token_file=token_file if _is_token_required() else None,
            allowed_hosts=allowed_hosts(public.getsockname()[0], host, more),
            allowed_origins=tuple(chain.from_iterable(flags["allowed_origins"] or ())),
        ),
        AccessRules(
            token_file=token_file,
            allowed_hosts=allowed_hosts(internal.getsockname()[0], host, more),
            refuse_origins=True,
        ),
    )


def _is_token_required() -> bool:
    """Whether the public port asks for the internal token."""
    return os.environ.get(environment.PUBLIC_TOKEN) == "1"


def _token_file() -> str | None:
    """The file of the internal token; None when the environment names none, and none is required."""
    path = os.environ.get(environment.INTERNAL_TOKEN_FILE)
    if not path:
        if _is_token_required():
            raise StartError(
                f"{environment.PUBLIC_TOKEN}=1 needs a token; name its file in {environment.INTERNAL_TOKEN_FILE}"
            )
        return None
    try:
        InternalToken(Path(path))
        return path
    except OSError as error:
        raise StartError(f"{environment.INTERNAL_TOKEN_FILE}={path}: {error.strerror}") from None
    except ValueError as error:
        raise StartError(f"{environment.INTERNAL_TOKEN_FILE}={path}: {error}") from None


def _find_model(flags: Mapping[str, Any]) -> tuple[Path, ModelConfig]:
    """Find the model and check its files, as the engine process will; in milliseconds and with better messages."""
    from blade_llm.hub.resolve import resolve_model
    from blade_llm.models.implementation import read_model_config
    from blade_llm.weights.checkpoint import check_weights, open_checkpoint

    with download_progress() as progress:
        folder = resolve_model(flags["model"], revision=flags["revision"], progress=progress)
    config = read_model_config(folder, flags["model_impl"], flags["task"])
    if flags["load_format"] == "auto":
        experts = flags["enable_expert_parallel"]
        checkpoint = open_checkpoint(folder, flags["tensor_parallel_size"], expert_parallel=experts)
        if problems := check_weights(checkpoint, config):
            raise StartError(f"{folder}: {'; '.join(problems)}")
    requested = flags["max_model_len"]
    if requested is not None and requested > config.max_position_embeddings:
        raise StartError(
            f"--max_model_len {requested} exceeds the model's own {config.max_position_embeddings} "
            "(max_position_embeddings); lower it"
        )
    return folder, config


def _model_source(flags: Mapping[str, Any], folder: Path, config: ModelConfig) -> ModelSource:
    from blade_llm.api.common.served_model import ModelSource

    return ModelSource(
        folder=str(folder),
        vocab_size=config.vocab_size,
        bidirectional=config.decoder.bidirectional,
        names=tuple(flags["served_model_name"] or (_default_name(flags["model"]),)),
        aliases=frozenset({flags["model"], str(folder)}),
        adapters=flags["enable_lora"],
        runtime_adapters=flags["enable_lora"] and flags["allow_runtime_lora_updating"],
        tokenizer_info=flags["enable_tokenizer_info_endpoint"],
        open_schemas=flags["open_schemas"],
        **text_fields(flags),
    )


def _default_name(model: str) -> str:
    """A hub id stays as it is; a folder goes by its name, a file by its name without the ending."""
    if Path(model).is_file():
        return Path(model).stem
    return Path(os.path.abspath(model)).name if Path(model).is_dir() else model.rpartition("://")[2].partition("@")[0]


def _speculative(flags: Mapping[str, Any], model: ServedModel) -> SpeculativeConfig | None:
    """Speculative decoding; the tokenizer of a draft model was compared, which a draft head has none of."""
    from blade_llm.hub.resolve import resolve_model
    from blade_llm.speculative_options import draft_tokenizer_folder, require_same_tokens, speculative_from_flags
    from blade_llm.text.tokenizer import Tokenizer

    def resolve(name: str) -> Path:
        with download_progress() as progress:
            return resolve_model(name, progress=progress)

    found = speculative_from_flags(flags, resolve)
    if folder := draft_tokenizer_folder(found, flags["draft.tokenizer_dir"]):
        require_same_tokens(model.tokenizer.vocabulary, Tokenizer(folder).vocabulary, folder)
    return found


def _engine_config(flags: Mapping[str, Any], folder: Path, model: ServedModel) -> EngineConfig:
    eos = model.tokenizer.eos_token_id
    config = EngineConfig(
        model=str(folder),
        served_names=model.names,
        **memory_fields(flags),
        **{name: flags[name] for name in _ENGINE_FIELDS},
        share_slots=True,
        allow_client_priority=flags["allow_client_priority"] or environment.ALLOW_CLIENT_PRIORITY in os.environ,
        enable_prompt_cache=not flags["disable_prompt_cache"],
        revision=os.environ.get(environment.REVISION, ""),
        extra_eos_token_ids=() if eos is None else (eos,),
        lora_modules=tuple(flags["lora_modules"] or ()),
        lora_allowed_roots=tuple(flags["lora_allowed_roots"] or ()),
        speculative=_speculative(flags, model),
        dist_init_addr=flags["dist_init_addr"] or "",
    )
    if config.nnodes > 1 and not config.dist_init_addr:
        raise ValueError(
            f"nnodes {config.nnodes} needs dist_init_addr: HOST:PORT of the machine with node_rank 0, like "
            "10.0.0.1:29500"
        )
    return config


if __name__ == "__main__":
    sys.exit(main())
