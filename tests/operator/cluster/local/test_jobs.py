"""Jobs of the local runtime as real processes: to the end, again after a failure, never more often than allowed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from operator_support.jobs import job
from operator_support.local import Local, local, pid_of, status_of, until
from operator_support.loop import loop

from blade_operator.cli.tables import pod_status_text, row
from blade_operator.cluster.local.commands import Commands
from blade_operator.cluster.local.errors import LocalError, UnsupportedField
from blade_operator.cluster.local.fields import require_supported
from blade_operator.cluster.local.jobs import JOB_NAME
from blade_operator.model.objects import Object, Ref


def _ended(runtime: Local, name: str = "work") -> Object:
    """The condition by which the Job has ended, or nothing."""
    conditions = runtime.get("Job", name).get("status", {}).get("conditions", [])
    return next(iter(conditions), {})


def _runs(runtime: Local) -> int:
    [pod] = runtime.pods()
    return int(status_of(pod, "work")["restartCount"]) + 1


async def test_a_job_runs_once_and_is_complete(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(job(f"open({str(tmp_path / 'ran')!r}, 'a').write('x')"))
        assert (await until(lambda: _ended(runtime)))["type"] == "Complete"
        [pod] = runtime.pods()
        assert pod["metadata"]["labels"][JOB_NAME] == "work"
        assert (pod["status"]["phase"], pod_status_text(pod)) == ("Succeeded", "Completed")
        status = runtime.get("Job", "work")["status"]
        assert (status["succeeded"], status["active"]) == (1, 0)
        assert dict(row(runtime.get("Job", "work"), wide=False))["STATUS"] == "Complete"
        await asyncio.sleep(0.3)  # an ended program is started anew at once, if at all
        assert (tmp_path / "ran").read_text() == "x"
        runtime.store.delete(Ref("Job", "default", "work"))
        await until(lambda: not runtime.pods())


async def test_what_a_program_says_of_its_progress_is_an_annotation_of_its_job(tmp_path: Path) -> None:
    """While it runs, and its last word when it has ended."""
    go = tmp_path / "go"
    code = (
        "import os, time; file = os.environ['BLADE_PROGRESS_FILE']; open(file, 'w').write('layer 1 of 2')\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
        "open(file, 'w').write('all of it')"
    )

    def said(runtime: Local) -> str:
        found = runtime.get("Job", "work")
        shown = dict(row(found, wide=True))["PROGRESS"]
        assert shown == found["metadata"].get("annotations", {}).get("serving.bladellm.io/progress", "<none>")
        return str(shown)

    async with local(tmp_path) as runtime:
        await runtime.apply(job(code))
        await until(lambda: said(runtime) == "layer 1 of 2")
        assert not _ended(runtime)
        go.touch()
        assert (await until(lambda: _ended(runtime)))["type"] == "Complete"
        assert said(runtime) == "all of it"


async def test_annotations_that_are_null_take_progress_too(tmp_path: Path) -> None:
    """As a manifest has them whose ``annotations:`` has nothing behind it: an error here would stop every other pod."""
    wanted = job("import os; open(os.environ['BLADE_PROGRESS_FILE'], 'w').write('all of it' * 1000)")
    wanted["metadata"]["annotations"] = None
    async with local(tmp_path) as runtime:
        await runtime.apply(wanted)
        assert (await until(lambda: _ended(runtime)))["type"] == "Complete"
        said = ("all of it" * 1000)[:1024]
        assert runtime.get("Job", "work")["metadata"]["annotations"] == {"serving.bladellm.io/progress": said}


async def test_a_program_that_fails_is_started_again_in_the_same_pod(tmp_path: Path) -> None:
    code = (
        f"import os, sys; p = {str(tmp_path / 'tried')!r}; sys.exit(os.path.exists(p) or open(p, 'w').write('') or 7)"
    )
    code = code.replace("sys.exit(os.path.exists(p) or", "sys.exit(0 if os.path.exists(p) else")
    async with local(tmp_path) as runtime:
        await runtime.apply(job(code))
        pod = await until(lambda: next(iter(runtime.pods()), None))
        assert (await until(lambda: _ended(runtime)))["type"] == "Complete"
        assert [each["metadata"]["uid"] for each in runtime.pods()] == [pod["metadata"]["uid"]]
        assert _runs(runtime) == 2


async def test_a_killed_program_is_started_again(tmp_path: Path) -> None:
    code = f"import os, time; p = {str(tmp_path / 'go')!r}\nwhile not os.path.exists(p): time.sleep(0.02)"
    async with local(tmp_path) as runtime:
        await runtime.apply(job(code))
        pod = await until(lambda: next((each for each in runtime.pods() if _state(each) == "running"), None))
        os.kill(pid_of(pod, "work"), signal.SIGKILL)
        await until(lambda: _runs(runtime) == 2)
        assert runtime.get("Job", "work")["status"]["active"] == 1
        (tmp_path / "go").touch()
        assert (await until(lambda: _ended(runtime)))["type"] == "Complete"


def _state(pod: Object) -> str:
    return next(iter(status_of(pod, "work")["state"]), "") if "status" in pod else ""


async def test_a_job_that_fails_too_often_says_why_and_is_left_alone(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        code = f"open({str(tmp_path / 'ran')!r}, 'a').write('x'); raise SystemExit('the disk is full')"
        await runtime.apply(job(code, backoff_limit=1))
        condition = await until(lambda: _ended(runtime))
        assert (condition["type"], condition["reason"]) == ("Failed", "BackoffLimitExceeded")
        assert condition["message"].endswith("backoff limit: the disk is full")
        await until(lambda: not runtime.pods())
        ran = (tmp_path / "ran").read_text()
        assert ran in ("x", "xx")  # the restart that is one too many may be killed before it writes
        await asyncio.sleep(0.3)
        assert (tmp_path / "ran").read_text() == ran
        assert runtime.get("Job", "work")["status"]["failed"] == 1
        assert any("the disk is full" in message for message in runtime.events("BackoffLimitExceeded"))


def test_the_next_loop_takes_a_job_over(tmp_path: Path) -> None:
    ran = str(tmp_path / "ran")
    code = f"import os, time; open({ran!r}, 'a').write('x')\nwhile not os.path.exists({str(tmp_path / 'go')!r}): "
    manifest = tmp_path / "jobs.yaml"
    manifest.write_text("\n---\n".join(map(json.dumps, (job("pass", "short"), job(f"{code}time.sleep(0.02)")))))
    with loop(tmp_path) as running:
        running.start("-f", str(manifest))

        def status(name: str) -> str:
            return next(line for line in running.command("get", "jobs").splitlines() if line.startswith(name)).split()[
                1
            ]

        running.until(lambda: status("short") == "Complete" and (tmp_path / "ran").exists())
        running.kill()
        running.start()
        assert (status("short"), status("work")) == ("Complete", "Running")
        assert len(running.objects("Pod")) == 2
        (tmp_path / "go").touch()
        # Nobody was its parent, so nobody knows how it ended: it runs once more, which has to do no harm.
        running.until(lambda: status("work") == "Complete")
        assert (tmp_path / "ran").read_text() == "xx"
        assert running.command("delete", "job", "work", "short").count("deleted") == 2
        assert not running.objects("Pod")
        assert running.interrupt() == 0


async def test_a_job_cannot_be_changed(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        commands = Commands(runtime.store, lambda obj: obj)
        assert commands.apply(job("pass")) == "created"
        assert commands.apply(job("pass")) == "unchanged"
        with pytest.raises(LocalError, match='Job "work" cannot be changed: delete it'):
            commands.apply(job("print()"))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("completions", 2, "spec.completions is 2; the local runtime knows 1 only"),
        ("podFailurePolicy", {}, "spec.podFailurePolicy is not supported"),
        ("template", {"spec": {"containers": []}}, "restartPolicy is missing: set OnFailure"),
        ("template", {"spec": {"restartPolicy": "Never"}}, "restartPolicy is 'Never'; the local runtime knows 'OnFail"),
    ],
)
def test_what_a_job_may_not_say_here(field: str, value: Any, message: str) -> None:
    wanted = job("pass")
    wanted["spec"][field] = value
    with pytest.raises(UnsupportedField, match=message.replace("(", "\\(")):
        require_supported(wanted)
