"""Links between stages: what is sent arrives whole and in order, and who is gone, late or wrong is named."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import zmq

from blade_llm.parallel.group import CollectiveError, RankLostError
from blade_llm.parallel.layout import RankLayout
from blade_llm.parallel.link import least_of_stages, receive_tensor, send_tensor
from blade_llm.parallel.ranks import join_ranks, stage_place
from blade_llm.parallel.route import free_port
from blade_llm.parallel.shared_memory import create_segment, is_available
from blade_llm.parallel.socket_link import SocketLink

CPU = torch.device("cpu")
CHILD = """
import sys
from blade_llm.parallel.socket_link import SocketLink
folder, stage, stages = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
link = SocketLink(f"ipc://{folder}/{stage}", f"ipc://{folder}/{(stage + 1) % stages}", stage, stages)
print("joined", flush=True)
sys.stdin.read()
"""


def endpoint(folder: Path, stage: int) -> str:
    return f"ipc://{folder}/{stage}"


@contextmanager
def ring(folder: Path, stages: int, timeout: float = 60.0) -> Iterator[list[SocketLink]]:
    def join(stage: int) -> SocketLink:
        return SocketLink(
            endpoint(folder, stage), endpoint(folder, (stage + 1) % stages), stage, stages, timeout=timeout
        )

    with ThreadPoolExecutor(stages) as pool:
        links = list(pool.map(join, range(stages)))
    try:
        yield links
    finally:
        for link in links:
            link.close()


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a short name, as the paths of sockets are short."""
    return tmp_path_factory.mktemp("l")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_arrive_whole_and_in_order(folder: Path, dtype: torch.dtype) -> None:
    tensors = [torch.randn(rows, 96).to(dtype) for rows in (1, 2048, 3, 0, 700)]
    with ring(folder, 2) as (first, second):
        assert first.receive(wait=False) is None
        for each in tensors:
            send_tensor(first, each)
        for each in tensors:
            received = receive_tensor(second, tuple(each.shape), dtype, CPU)
            assert torch.equal(received, each)
            received += 1  # its memory is the receiver's own
        second.send(memoryview(b"tokens"))
        assert first.receive() == b"tokens"
        send_tensor(first, tensors[0])
        with pytest.raises(CollectiveError, match=r"has sent .* bytes instead of"):
            receive_tensor(second, (2, 96), dtype, CPU)


@pytest.mark.parametrize("stages", [2, 3])
def test_all_stages_find_the_least(folder: Path, stages: int) -> None:
    with ring(folder, stages) as links, ThreadPoolExecutor(stages) as pool:
        for values in ([7, 5, 9], [-3, 1 << 40, 2], [4, 4, 4]):
            found = pool.map(least_of_stages, links, values[:stages])
            assert set(found) == {min(values[:stages])}


def receiving(link: SocketLink, then: Callable[[], None]) -> RankLostError:
    """What :meth:`SocketLink.receive` raises that waits while ``then`` is called."""
    timer = threading.Timer(0.2, then)
    timer.start()
    with pytest.raises(RankLostError) as caught:
        link.receive()
    timer.join()
    return caught.value


def test_an_abort_wakes_who_waits(folder: Path) -> None:
    with ring(folder, 2) as (first, _):
        assert "rank 5 is lost" in str(receiving(first, lambda: first.abort(5)))
        with pytest.raises(RankLostError, match="rank 5 is lost"):
            first.receive()


def test_who_sends_nothing_is_named(folder: Path) -> None:
    with ring(folder, 2, timeout=0.3) as (_, second):
        with pytest.raises(RankLostError, match=r"stage 0 has sent nothing for 0\.3 s"):
            second.receive()


def test_a_process_that_dies_is_noticed_by_the_stage_after_it(folder: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), "1", "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    link = SocketLink(endpoint(folder, 0), endpoint(folder, 1), 0, 2)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"joined\n"
        error = receiving(link, lambda: os.kill(child.pid, signal.SIGKILL))
        assert "the rank of stage 1 is gone" in str(error)
    finally:
        link.close()
        child.kill()
        child.communicate()


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(60)]
)
def test_a_stranger_that_leaves_is_no_loss(said: bytes) -> None:
    _, secret = zmq.curve_keypair()
    ports = free_port(), free_port()

    def join(stage: int) -> SocketLink:
        places = [f"tcp://127.0.0.1:{ports[each]}" for each in (stage, 1 - stage)]
        return SocketLink(*places, stage, 2, timeout=5.0, key=secret.decode())

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(join, range(2))
    try:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", ports[1])) as stranger:
                stranger.sendall(said)
        first.send(memoryview(b"states"))
        assert second.receive() == b"states"
        assert "rank 7 is lost" in str(receiving(second, lambda: second.abort(7)))
        assert "the rank of stage 1 is gone" in str(receiving(first, second.close))
    finally:
        first.close()
        second.close()


def test_nobody_comes(folder: Path) -> None:
    with pytest.raises(RankLostError, match=r"stage 1 has sent nothing for 0\.2 s"):
        SocketLink(endpoint(folder, 0), endpoint(folder, 1), 0, 2, timeout=0.2)


def test_a_stage_of_another_ring_is_refused(folder: Path) -> None:
    def join(stage: int, stages: int) -> None:
        SocketLink(endpoint(folder, stage), endpoint(folder, 1 - stage), stage, stages, timeout=3)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(join, 0, 2), pool.submit(join, 1, 3)
        with pytest.raises(CollectiveError, match="stage 0 of 2 meets stage 1 of 3"):
            first.result()
        with pytest.raises(CollectiveError, match="stage 1 of 3 meets stage 0 of 2"):
            second.result()


def test_a_refused_stage_is_told_whom_it_met_however_late_it_listens(folder: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with ThreadPoolExecutor(1) as pool, context, context.socket(zmq.PUSH) as before, context.socket(zmq.PULL) as late:
        refusing = pool.submit(SocketLink, endpoint(folder, 1), endpoint(folder, 0), 1, 3)
        before.connect(endpoint(folder, 1))
        before.send(b"0 of 2")
        assert not wait([refusing], timeout=0.5).done
        late.bind(endpoint(folder, 0))
        assert late.recv() == b"1 of 3"
        with pytest.raises(CollectiveError, match="stage 1 of 3 meets stage 0 of 2"):
            refusing.result()


@pytest.mark.skipif(not is_available(), reason="needs the native operators")
def test_ranks_of_several_stages_find_each_other(folder: Path) -> None:
    """Each its group, of its stage, and its link, to the ranks of its number."""
    layout = RankLayout(tensor=2, pipeline=2)
    for stage in range(2):
        create_segment(2, folder).rename(stage_place(folder, stage))

    def join(rank: int) -> tuple[int, int, int]:
        group, link = join_ranks(f"shm:{folder}", layout, rank, "cpu")
        assert group is not None
        assert link is not None
        link.send(memoryview(bytes([rank])))
        total = int(group.all_reduce(torch.tensor([float(rank)]))[0])
        received = link.receive()
        assert received is not None
        return group.rank, total, received[0]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(join, range(4))) == [(0, 1, 2), (1, 1, 3), (0, 5, 0), (1, 5, 1)]
