"""Loading a model with packed weights from their folder, or writing them there; whatever fails, the model is loaded."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import torch

from blade_llm.kernels.linear import pack
from blade_llm.kernels.linear.native import is_available
from blade_llm.kernels.linear.packed import Packer
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.weight_source import WeightSource
from blade_llm.weights.packed_cache.file import PackedFile
from blade_llm.weights.packed_cache.file_source import FileSource
from blade_llm.weights.packed_cache.folder import LEAST_BYTES, Place, Writing
from blade_llm.weights.packed_cache.sources import ReadingSource, WritingSource

logger = logging.getLogger(__name__)

Model = TypeVar("Model")
Build = Callable[[WeightSource, Packer], Model]
"""Makes a model of the tensors of a source, with the linear layers of a packer."""
_BYTES: Final = torch.bfloat16.itemsize
_MARGIN: Final = 64 << 20


def can_be_kept(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the native kernels pack the weights, the only ones whose form is known."""
    return device.type == "cpu" and dtype == torch.bfloat16 and is_available()


def load_with_packed(
    folder: Path, limit: int, settings: tuple[str, ...], source: FileSource, build: Build[Model]
) -> Model:
    """``build`` with the packed weights in ``folder``, or with those of ``source``, which are written there then.

    ``limit``: most bytes of the folder; ``settings``: all that decides what is packed besides the files and the code.
    Raises what ``build`` raises with ``source`` alone.
    """
    elements = source.sizes
    if sum(elements) * _BYTES < LEAST_BYTES:
        return build(source, pack)
    place = Place(folder, limit, source.files, settings)
    # A tied embedding may be stored twice, packed and plain; padding and page ends are small beside the rest.
    capacity = int(sum(elements) * _BYTES * 1.05) + max(elements) * _BYTES + _MARGIN
    found, writing = _find_or_write(place, capacity)
    if found is not None:
        reading = ReadingSource(source, found, torch.bfloat16)
        source.trust_values()
        try:
            model = build(reading, reading.pack)
            reading.finish()
            return model
        except ModelFilesError:
            raise
        except Exception as error:
            logger.warning(
                "packed weights in %s are not used: %s: %s; the next start writes them anew",
                found.path,
                type(error).__name__,
                error,
            )
            with contextlib.suppress(OSError):
                found.path.unlink()
        # Outside the block above, whose error would keep what was made of the model by then.
    if writing is None:
        return build(source, pack)
    write = WritingSource(source, writing, torch.bfloat16)
    try:
        model = build(write, write.pack)
        write.finish()
        return model
    except (ModelFilesError, KeyboardInterrupt):
        write.abandon("the model was not loaded")
        raise
    except Exception as error:
        write.abandon(f"{type(error).__name__}: {error}")
    return build(source, pack)


def _find_or_write(place: Place, capacity: int) -> tuple[PackedFile | None, Writing | None]:
    writing = None
    try:
        if found := place.find():
            return found, None
        writing = place.open_writer(capacity)
        found = place.find()  # another process may have completed it meanwhile
    except OSError as error:
        logger.info("packed weights are neither read nor kept in %s: %s", place.folder, error)
        found = None
    if found is not None and writing is not None:
        writing.discard()
        writing = None
    return found, writing
