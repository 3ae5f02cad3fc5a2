"""Executes step plans. :func:`build_runner` is the way in; torch is imported only by calling it."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING

from blade_llm.models.implementation import read_model_config
from blade_llm.runner.startup.host_memory import use_huge_pages
from blade_llm.runner.startup.threads import spin_briefly

if TYPE_CHECKING:
    from blade_llm.config import EngineConfig
    from blade_llm.models.config import ModelConfig
    from blade_llm.parallel.group import RankGroup
    from blade_llm.parallel.link import StageLink
    from blade_llm.runner.torch_runner import TorchRunner


def build_runner(
    config: EngineConfig,
    model_config: ModelConfig | None = None,
    group: RankGroup | None = None,
    link: StageLink | None = None,
) -> TorchRunner:
    """A runner, loaded and warmed up.

    Its ``timings`` has the seconds of each phase, in order: ``import``, ``operators`` (on CPU), ``weights``,
    ``profile`` (on a GPU), ``warm-up``, ``graphs`` (where there are any).

    ``model_config`` is read from ``config.model`` when not given. ``group``: the ranks that compute the model together,
    of which ``model_config`` is this one's; ``link``: to the pipeline stages before and after. Raises
    :class:`~blade_llm.models.errors.ModelFilesError`, :class:`~blade_llm.models.errors.NotEnoughMemoryError`, and
    ``ValueError`` for a ``max_model_len`` beyond the model's own.
    """
    if model_config is None:
        # Before the import: bad files are reported at once.
        model_config = read_model_config(config.model_dir, config.model_impl, config.task)
    imported = preload()
    from blade_llm.runner.torch_runner import TorchRunner

    if link is None:
        runner = TorchRunner(config, model_config, group=group)
    else:
        from blade_llm.runner.stage_runner import StageRunner

        runner = StageRunner(config, model_config, group, link)
    runner.timings = {"import": imported, **runner.timings}
    runner.warm_up()
    return runner


@cache
def preload() -> float:
    """Import torch and what runs a step, half of a start; returns the seconds that it took."""
    spin_briefly()
    use_huge_pages()
    start = time.perf_counter()
    import blade_llm.runner.torch_runner  # noqa: F401

    return time.perf_counter() - start
