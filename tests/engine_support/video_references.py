"""What transformers' video processors make of small videos.

``python -m engine_support.video_references``, in ``tests/``, writes the file that tests compare with. It needs
torchvision, which resizes there; tests do not. Its bicubic filter rounds its weights to 16 bits, so that 1 % of all
values of these videos are 1 away from those of Pillow, whose are exact, and single ones 2.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from engine_support.image_cases import waves

STORED: Final = Path(__file__).parent.parent / "engine" / "multimodal" / "transformers_videos.json"
SAMPLES: Final = 60


class VideoCase(NamedTuple):
    family: str
    frames: int
    height: int
    width: int

    @property
    def name(self) -> str:
        return f"{self.family}-{self.frames}x{self.height}x{self.width}"

    @property
    def arrays(self) -> list[npt.NDArray[np.uint8]]:
        """Each of its frames, [height, width, 3]."""
        return video_frames(self.frames, self.height, self.width)


BOUNDS: Final = {"qwen2_vl": (28 * 28 * 4, 28 * 28 * 16), "qwen3_vl": (32 * 32 * 6, 32 * 32 * 40)}
"""Least and most pixels: of a frame, and of all frames."""
SIZES: Final = ((1, 1), (3, 7), (56, 84), (90, 33), (20, 390), (200, 180))
CASES: Final = [VideoCase(family, frames, *size) for family in BOUNDS for frames in (2, 5, 8) for size in SIZES] + [
    VideoCase("qwen2_vl", 1, 56, 84),
    VideoCase("qwen2_vl", 1, 3, 7),
]
"""One frame of Qwen3-VL is an error there."""
SAMPLED: Final = [
    (total, rate, fps)
    for total, rate in ((2, 10.0), (3, 1.0), (7, 2.0), (25, 12.5), (90, 30.0), (241, 24.0), (1999, 10.0))
    for fps in (2.0, 0.5, 7.3)
]
"""Frames of a video, how many of them are a second, and how many of a second are wanted."""


class Stored(msgspec.Struct, frozen=True):
    """Everything that is stored."""

    videos: dict[str, tuple[tuple[int, int, int], tuple[int, ...]]]
    """By name: the grid, and some of the values in the order of patches, before they are normalised."""
    sampled: dict[str, list[tuple[int, float, float, tuple[int, ...], tuple[float, ...]]]]
    """By family: as :data:`SAMPLED`, the indices of frames, and the seconds that Qwen3-VL writes."""


def video_frames(frames: int, height: int, width: int) -> list[npt.NDArray[np.uint8]]:
    """[height, width, 3] each, no two alike."""
    return [np.asarray((waves(height, width, 3).astype(int) + 37 * at) % 256, np.uint8) for at in range(frames)]


def some(patches: npt.NDArray[Any]) -> tuple[int, ...]:
    """Values evenly apart."""
    flat = patches.reshape(-1)
    return tuple(int(flat[at]) for at in np.linspace(0, flat.size - 1, SAMPLES).astype(int))


_OPERATORS: Final[list[Any]] = []


def _processors() -> dict[str, Any]:
    import torch

    library = torch.library.Library("torchvision", "DEF")  # of builds for GPUs, which do not load without one
    _OPERATORS.append(library)
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    kinds: dict[str, Any] = {"qwen2_vl": Qwen2VLVideoProcessor, "qwen3_vl": Qwen3VLVideoProcessor}
    return {
        name: kinds[name](size={"shortest_edge": least, "longest_edge": most}) for name, (least, most) in BOUNDS.items()
    }


def main() -> None:
    processors, lines = _processors(), []
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
    from transformers.video_utils import VideoMetadata

    raw = {"do_rescale": False, "do_normalize": False, "do_sample_frames": False, "input_data_format": "channels_last"}
    for case in CASES:
        video = np.stack(case.arrays)
        found = processors[case.family](videos=[video], cap_pixels_per_frame=False, return_tensors="pt", **raw)
        values = some(found["pixel_values_videos"].numpy())
        lines.append(f"{json.dumps(case.name)}: {json.dumps([found['video_grid_thw'][0].tolist(), values])}")
    sampled: dict[str, list[Any]] = {}
    for family, processor in processors.items():
        for total, rate, fps in SAMPLED:
            metadata = VideoMetadata(total_num_frames=total, fps=rate)
            taken = [int(index) for index in processor.sample_frames(metadata, fps=fps)]
            # steps in floating point reach a frame behind the last one, which no video has
            indices = [index for index in taken if index < total]
            times = Qwen3VLProcessor._calculate_timestamps(None, list(indices), rate, 2)
            sampled.setdefault(family, []).append((total, rate, fps, indices, times))
    text = ",\n".join(lines)
    STORED.write_text(f'{{"videos": {{\n{text}\n}},\n"sampled": {json.dumps(sampled)}}}\n', encoding="utf-8")
    print(f"{len(lines)} videos, {STORED.stat().st_size} bytes")


if __name__ == "__main__":
    main()
