"""``quantize``: its flags are those of ``blade_llm_quantize``, and what is wrong is said before there is a Job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from blade_llm.cli.flags import FlagParser, boolean, byte_size, positive, tokens
from blade_llm.cli.quantize_flags import GROUPS, options_of
from blade_operator import main as program
from blade_operator.cli.quantize.flags import FLAGS, NUMBER, SHARE, SIZE, SWITCH, TOKENS
from blade_operator.cluster.local.environment import expand
from blade_operator.cluster.local.fields import require_supported

BASE = ("quantize", "qwen-w4", "--model", "hf://Qwen/Qwen3-8B", "--output_dir", "pvc://models/qwen3-w4")
_KINDS: dict[Any, str] = {boolean: SWITCH, positive: NUMBER, tokens: TOKENS, float: SHARE, byte_size: SIZE}


def _job(*argv: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert program.main([*BASE, *argv]) == 0
    made: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return made


def _args(*argv: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    [container] = _job(*argv, capsys=capsys)["spec"]["template"]["spec"]["containers"]
    return list(container["args"])


def test_flags_are_those_of_the_command() -> None:
    """A flag that the command gets needs a row in ``blade_operator/cli/quantize/flags.py``."""
    theirs = {flag.name: flag for _, flags in GROUPS for flag in flags}
    ours = {flag.name: flag for flag in FLAGS}
    assert {*theirs} == {*ours} | {"model", "output_dir"}
    for name in ours:
        command, flag = theirs[name], ours[name]
        assert (flag.choices, flag.many, flag.aliases) == (command.choices, command.many, command.aliases), name
        known = _KINDS.get(command.kind)
        assert flag.kind == known if known else flag.kind not in _KINDS.values(), name


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), ()),
        (("--bit", "4", "--block-wise-quant", "--block_size", "32"),
         ("--bit", "4", "--block_wise_quant=true", "--block_size", "32")),
        (("--ignore", "lm_head", "re:.*gate.*", "-tp", "2"),
         ("--ignore", "lm_head", "re:.*gate.*", "--tensor_parallel_size", "2")),
        (("--quant_dtype=fp8", "--bit", "8"), ("--bit", "8", "--quant_dtype", "fp8")),
        (("--asymmetric", "no", "--max_shard_size", "2GiB"), ("--asymmetric=false", "--max_shard_size", "2GiB")),
    ],
)  # fmt: skip
def test_flags_are_passed_on(
    given: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    args = _args(*given, capsys=capsys)
    assert args == ["--model", "hf://Qwen/Qwen3-8B", "--output_dir", "/output/qwen3-w4", *words]
    parsed = FlagParser("blade_llm_quantize", "", GROUPS).parse(args)
    assert parsed["output_dir"] == Path("/output/qwen3-w4")
    options_of(parsed)


def test_a_kubelet_gives_the_command_what_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["re:.*proj$", "$(HF_HOME)", "$$5"]
    args = _args("--ignore", *typed, capsys=capsys)
    assert [expand(word, {"HF_HOME": "/models"}) for word in args[-3:]] == typed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--block_size", "32"), "--block_size 32 does nothing by itself; add --block_wise_quant"),
        (("--quant_dtype", "fp8", "--bit", "4"), "--quant_dtype fp8 has 8 bits, not 4"),
        (("--output_dir", "/data/w4"), "--output_dir /data/w4: must be pvc://CLAIM/FOLDER"),
        (("--output_dir", "pvc://models"), "must be pvc://CLAIM/FOLDER, a new or empty folder of a claim"),
        (("--output_dir", "pvc://models/../x"), "must be pvc://CLAIM/FOLDER"),
        (("--model", "s3://x"), '--model: must be hf://organisation/name, modelscope://organisation/name'),
        (("--model", "nothing like it"), "--model nothing like it: there is no such folder, and it is no hub id"),
        (("--model", "pvc://m/a", "--revision", "main"), "--revision: only an hf:// or modelscope:// model has a"),
        (("--credentials_secret", "s3"), "--credentials_secret: only an s3://, oss:// or oci:// model"),
        (("--model", "pvc://m/a", "--cache_claim", "c"), "--cache_claim: only a model that is downloaded is cached"),
        (("--cpu", "many"), "--cpu: must be a quantity like 2, 500m or 4Gi"),
        (("--memory", "4 GB"), "--memory: must be a quantity"),
        (("--env", "BLADE_X=1"), "--env: names that start with BLADE_ are set by the operator"),
        (("--calib_data_file", "texts.jsonl"), "--calib_data_file texts.jsonl: must be pvc://CLAIM/FILE, or an abs"),
        (("--kubeconfig", "x"), "--kubeconfig goes with --apply"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(given: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([*BASE, *given]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--bit", "5"), "--bit: invalid choice: '5'"),
        (("--quant_algo", "gpqt"), "--quant_algo"),
        (("--quant_alog", "gptq"), "unknown option or argument '--quant_alog'; did you mean '--quant_algo'?"),
        (("--block_size", "0"), "'0' is not a whole number of at least 1"),
        (("--cpu_offload", "perhaps"), "'perhaps' is neither true nor false"),
        (("--max_shard_size", "big"), "'big' is no size like 5GB or 4GiB"),
        (("--calib_length", "0"), "'0' is not a number of tokens like 2048 or 2k"),
        (("--damping", "little"), "'little' is not a number"),
        (("--env", "A"), "'A' is not NAME=VALUE"),
    ],
)
def test_mistakes_in_flags(given: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        program.main([*BASE, *given])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_the_job_is_the_golden_one(capsys: pytest.CaptureFixture[str]) -> None:
    argv = (
        *("--cache_claim", "models", "--token_secret", "hub", "--env", "HF_ENDPOINT=https://hub.example"),
        *("--quant_algo", "gptq", "--bit", "4", "--block_wise_quant", "--calib_data_file", "pvc://texts/a/b.jsonl"),
        *("--cpu", "8", "--memory", "24Gi", "--image", "engine:7", "--backoff_limit", "3", "-n", "team"),
    )
    golden = Path(__file__).with_name("quantize_job.yaml")
    assert program.main([*BASE, *argv]) == 0
    assert capsys.readouterr().out == golden.read_text()
    require_supported(yaml.safe_load(golden.read_text()))
    assert program.main([*BASE, *argv, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == yaml.safe_load(golden.read_text())


@pytest.mark.parametrize(
    ("model", "volumes", "mounts"),
    [
        ("pvc://models/qwen3", {"models": {"claimName": "models"}}, {"/models": True, "/output": False}),
        (
            "pvc://sources/qwen3",
            {"models": {"claimName": "sources", "readOnly": True}, "output": {"claimName": "models"}},
            {"/models": True, "/output": False},
        ),
        ("file:///models/qwen3", {"output": {"claimName": "models"}}, {"/output": False}),
    ],
)
def test_a_claim_is_one_volume_whatever_it_is_for(
    model: str, volumes: dict[str, Any], mounts: dict[str, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    pod = _job("--model", model, capsys=capsys)["spec"]["template"]["spec"]
    claims = {each["name"]: each["persistentVolumeClaim"] for each in pod["volumes"] if each["name"] != "tmp"}
    assert claims == volumes
    found = {each["mountPath"]: each.get("readOnly", False) for each in pod["containers"][0]["volumeMounts"]}
    assert {path: only for path, only in found.items() if path != "/tmp"} == mounts
    args = pod["containers"][0]["args"]
    assert args[1] == "/models/qwen3"


def test_on_openshift_the_platform_names_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    security = _job("--openshift", capsys=capsys)["spec"]["template"]["spec"]["securityContext"]
    assert (security["runAsNonRoot"], "runAsUser" in security) == (True, False)


def _documents(*argv: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert program.main([*BASE, *argv]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def test_progress_needs_an_identity_that_may_change_its_own_job_alone(capsys: pytest.CaptureFixture[str]) -> None:
    account, role, binding, job = _documents("--report_progress", "-n", "team", capsys=capsys)
    assert [each["kind"] for each in (account, role, binding, job)] == ["ServiceAccount", "Role", "RoleBinding", "Job"]
    name = account["metadata"]["name"]
    assert account["automountServiceAccountToken"] is False
    assert role["rules"] == [
        {"apiGroups": ["batch"], "resources": ["jobs"], "resourceNames": ["qwen-w4"], "verbs": ["patch"]}
    ]
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": "team"}]
    assert {each["metadata"]["namespace"] for each in (account, role, binding, job)} == {"team"}
    assert len({json.dumps(each["metadata"]["labels"]) for each in (account, role, binding, job)}) == 1
    pod = job["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == (name, True)
    assert pod["containers"][0]["env"][0] == {"name": "BLADE_PROGRESS_JOB", "value": "qwen-w4"}
    assert program.main([*BASE, "--report_progress", "-n", "team", "-o", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert (listed["kind"], listed["items"]) == ("List", [account, role, binding, job])


def test_without_it_a_pod_has_no_token(capsys: pytest.CaptureFixture[str]) -> None:
    [job] = _documents(capsys=capsys)
    pod = job["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    assert not any(each["name"] == "BLADE_PROGRESS_JOB" for each in pod["containers"][0].get("env", ()))


def test_the_local_runtime_needs_no_identity(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([*BASE, "--report_progress", "--apply"]) == 1
    assert "--report_progress is for Kubernetes: the local runtime shows progress by itself" in capsys.readouterr().err
