"""Real processes: the ranks of this machine, and two machines that are both this one."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from blade_llm.check.ranks.all_reduce import Task, measure
from blade_llm.check.ranks.local import SEGMENT_BYTES, check_ranks
from blade_llm.cli.check import main


def test_ranks_of_this_machine_add_up_and_leave_nothing(tmp_path: Path) -> None:
    item = check_ranks(2, tmp_path)
    assert item.status == "PASS", item.detail
    assert "2 ranks through" in item.detail
    assert "GB/s" in item.detail
    assert list(tmp_path.iterdir()) == []


def test_too_little_shared_memory_fails_with_what_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=2, f_frsize=SEGMENT_BYTES))
    item = check_ranks(3, tmp_path)
    assert item.status == "FAILED"
    assert item.detail.startswith(
        f"3 ranks need {3 * SEGMENT_BYTES} bytes of shared memory, {tmp_path} has {2 * SEGMENT_BYTES} free"
    )


def test_no_shared_memory_fails(tmp_path: Path) -> None:
    item = check_ranks(2, tmp_path / "none")
    assert (item.status, "mount a writable tmpfs there" in item.detail) == ("FAILED", True)


def test_a_segment_takes_what_the_check_says(tmp_path: Path) -> None:
    from blade_llm.parallel.shared_memory import create_segment, is_available

    if not is_available():
        pytest.skip("no native operators")
    sizes = [create_segment(ranks, tmp_path).stat().st_size for ranks in (1, 2)]
    assert sizes[1] - sizes[0] == SEGMENT_BYTES


def test_ranks_that_nobody_joins_end(tmp_path: Path) -> None:
    task = Task(address=f"file:{tmp_path / 'ranks'}", rank=0, size=2, device=None, seconds=4.0)
    assert asyncio.run(measure(task)).problem


def test_an_address_that_is_none_is_a_problem() -> None:
    assert "ValueError" in asyncio.run(measure(Task(address="x", rank=0, size=2, device=None))).problem


def test_two_machines_check_each_other() -> None:
    with socket.create_server(("", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    flags = ["--items", "shm", "-tp", "2", "--nnodes", "2", "--dist_init_addr", address, "--dist_timeout", "120"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "blade_llm.cli.check", *flags, "--node_rank", str(rank)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "BLADE_TERMINATION_LOG": os.devnull},
        )
        for rank in (1, 0)
    ]
    outputs = [process.communicate()[0] for process in processes]
    for output in outputs:
        names = [line.split()[0] for line in output.splitlines()[:5]]
        assert names == ["check_nodes", "check_versions", "check_clocks", "check_allreduce", "check_shm"], output
        assert "gloo over TCP between 2 machines" in output
        assert "FAILED 0" in output
    assert outputs[0].splitlines()[:4] == outputs[1].splitlines()[:4]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--nnodes", "2", "-tp", "2"], "--nnodes 2 needs --dist_init_addr HOST:PORT"),
        (["--nnodes", "2", "-tp", "2", "--node_rank", "2", "--dist_init_addr", "x:1"], "give 0 to 1"),
        (["--nnodes", "2", "--dist_init_addr", "x:1"], "1 ranks cannot be divided among 2 machines"),
        (["--nnodes", "2", "-tp", "2", "--dist_init_addr", "29500"], "is not of the form HOST:PORT"),
        (["--nnodes", "2", "-tp", "2", "--dist_init_addr", "::1:29500"], "is not of the form HOST:PORT"),
        (["--nnodes", "2", "-tp", "2", "--dist_init_addr", "[::1:29500"], "is not of the form HOST:PORT"),
        (["--nnodes", "2", "-tp", "2", "--dist_init_addr", "x:0"], "is not of the form HOST:PORT"),
        (["--nnodes", "2", "-tp", "2", "--items", "shm", "--node_rank", "2"], "give 0 to 1"),
        (["--items", "clocks"], "check_clocks needs --nnodes N of at least 2"),
        (["--nnodes", "2", "-tp", "2", "--items", "clocks"], "and --dist_init_addr HOST:PORT"),
    ],
)
def test_flags_that_do_not_go_together(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(flags)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_several_ranks_add_their_item_and_one_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--mode", "warn", "-tp", "2"])
    assert "check_ranks" in capsys.readouterr().out
    main(["--mode", "warn"])
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[:3]] == ["check_shm", "check_pb_env", "check_flops_diff"]
    assert "check_ranks" not in printed
    assert "check_nodes" not in printed
