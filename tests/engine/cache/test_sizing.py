"""How much memory there is, and what it holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hub_support.tiny_model import make_model

from blade_llm.cache.memory_limit import memory_left_bytes, memory_limit_bytes
from blade_llm.cache.sizing import default_kv_cache_bytes, kv_block_bytes, plan_blocks
from blade_llm.models.config import load_model_config
from blade_llm.models.errors import NotEnoughMemoryError

TOKEN = 2 * 2 * 2 * 4 * 4  # keys and values, 2 layers, 2 heads of 4, fp32
BLOCK = 16 * TOKEN


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", "MemFree:  1 kB\nMemTotal:  1000 kB\nMemAvailable:  300 kB\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_without_a_cgroup_the_machine_is_the_limit(root: Path) -> None:
    assert memory_limit_bytes(root) == 1_024_000


@pytest.mark.parametrize(("own", "parent", "limit"), [("5000", "max", 5000), ("5000", "4000", 4000)])
def test_cgroup_v2_counts_with_its_parents(root: Path, own: str, parent: str, limit: int) -> None:
    write(root, "proc/self/cgroup", "0::/kube/pod\n")
    write(root, "sys/fs/cgroup/kube/pod/memory.max", own + "\n")
    write(root, "sys/fs/cgroup/kube/memory.max", parent + "\n")
    assert memory_limit_bytes(root) == limit


def test_in_a_container_the_limit_is_at_the_root(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "sys/fs/cgroup/memory.max", "7000\n")
    assert memory_limit_bytes(root) == 7000


def test_cgroup_v1(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:cpu,cpuacct:/x\n3:memory:/docker/abc\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert memory_limit_bytes(root) == 1_024_000
    write(root, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "6000\n")
    assert memory_limit_bytes(root) == 6000


def test_what_is_left_is_the_least_that_machine_and_cgroups_leave(root: Path) -> None:
    assert memory_left_bytes(root) == 307_200
    write(root, "proc/self/cgroup", "0::/kube/pod\n")
    write(root, "sys/fs/cgroup/kube/pod/memory.max", "max\n")
    write(root, "sys/fs/cgroup/kube/pod/memory.current", "900\n")
    assert memory_left_bytes(root) == 307_200
    write(root, "sys/fs/cgroup/kube/memory.max", "5000\n")
    write(root, "sys/fs/cgroup/kube/memory.current", "4000\n")
    assert memory_left_bytes(root) == 1000
    write(root, "sys/fs/cgroup/kube/memory.stat", "anon 100\ninactive_file 1500\n")
    assert memory_left_bytes(root) == 2500
    write(root, "sys/fs/cgroup/kube/pod/memory.max", "800\n")
    assert memory_left_bytes(root) == 0


def test_what_is_left_in_cgroup_v1(root: Path) -> None:
    write(root, "proc/self/cgroup", "3:memory:/docker/abc\n")
    write(root, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "6000\n")
    write(root, "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "1000\n")
    assert memory_left_bytes(root) == 5000


def test_the_default_cache_is_a_quarter_shared_by_the_replicas() -> None:
    assert default_kv_cache_bytes(limit=8000) == 2000
    assert default_kv_cache_bytes(2, limit=8000) == 1000


def test_blocks(tmp_path: Path) -> None:
    config = load_model_config(make_model(tmp_path))
    assert kv_block_bytes(config, "float32") == BLOCK
    assert kv_block_bytes(config, "bfloat16", block_size=32) == BLOCK
    plan = plan_blocks(config, "float32", kv_cache_bytes=40 * BLOCK + 5)
    assert (plan.blocks, plan.tokens, plan.max_model_len, plan.concurrent_at_max_len) == (40, 640, 256, 2.5)
    assert plan_blocks(config, "float32", kv_cache_bytes=4 * BLOCK, max_model_len=50).concurrent_at_max_len == 1.0


def test_too_little_for_one_request_says_what_to_set(tmp_path: Path) -> None:
    config = load_model_config(make_model(tmp_path))
    with pytest.raises(NotEnoughMemoryError) as caught:
        plan_blocks(config, "float32", kv_cache_bytes=15 * BLOCK)
    assert f"raise --kv_cache_bytes to {16 * BLOCK}, or lower --max_model_len to 240" in str(caught.value)
    plan_blocks(config, "float32", kv_cache_bytes=16 * BLOCK)
    plan_blocks(config, "float32", kv_cache_bytes=15 * BLOCK, max_model_len=240)
    with pytest.raises(NotEnoughMemoryError) as caught:
        plan_blocks(config, "float32", kv_cache_bytes=BLOCK - 1)
    assert str(caught.value).endswith(f"raise --kv_cache_bytes to {16 * BLOCK}")


def test_more_than_the_model_can_is_refused(tmp_path: Path) -> None:
    config = load_model_config(make_model(tmp_path))
    with pytest.raises(
        ValueError, match="--max_model_len 257 is more than the model's own length; lower it to at most 256"
    ):
        plan_blocks(config, "float32", kv_cache_bytes=BLOCK, max_model_len=257)


def test_no_torch_is_needed() -> None:
    code = (
        "import sys, blade_llm.models.config, blade_llm.weights.checkpoint, blade_llm.models.families,"
        "blade_llm.cache.sizing, blade_llm.hub.snapshot, blade_llm.hub.materialize, blade_llm.cli.check;"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
