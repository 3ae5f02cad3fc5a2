"""Small random models with images as folders that a server serves: weights, tokenizer, chat template, processor files;
and what transformers makes of the same conversations."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from engine_support.families import Row, save_row
from engine_support.image_references import reference
from engine_support.tiny_text import write_tokenizer
from engine_support.vision_rows import INTERNVL_TOWER, QWEN2_TOWER, text
from examples.families.tokenizers import byte_level_tokenizer
from PIL import Image, ImageOps

from blade_llm.multimodal.processors import ImageProcessor, QwenProcessor
from blade_llm.multimodal.processors.reading import read_processor
from blade_llm.text.tokenizer import Tokenizer

FLAGS: Final = (
    *("--load_format", "auto", "--dtype", "float32", "--kv_cache_bytes", "32MiB", "--encoder_cache_bytes", "4MiB"),
    *("--max_num_seqs", "8", "--image_workers", "1", "--image_timeout", "60"),
)
"""What these models are served with."""
_VOCABULARY: Final = 320
_CHAT: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_SPECIAL: Final = (*_CHAT, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
INTERNVL_SPECIAL: Final = (*_CHAT, "<img>", "</img>", "<IMG_CONTEXT>")
SPECIAL: Final = {"qwen2-vl": QWEN_SPECIAL, "internvl": INTERNVL_SPECIAL}
IMAGE: Final = {"qwen2-vl": "<|image_pad|>", "internvl": "<IMG_CONTEXT>"}
_SHOWN: Final = {"qwen2-vl": "<|vision_start|><|image_pad|><|vision_end|>", "internvl": "<IMG_CONTEXT>\n"}
"""What templates of these families write for an image."""
_VIDEO: Final = "<|vision_start|><|video_pad|><|vision_end|>"
TEMPLATE: Final = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content -%}
{%- if part.type == 'image' %}{{ IMAGE }}{% elif part.type == 'video' %}{{ VIDEO }}{% elif
part.type == 'text' %}{{ part.text }}{% endif -%}
{%- endfor %}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""


def _never_special(model: Any) -> None:
    """A generated image token would stand for an image that is not there."""
    model.lm_head.weight.data[: len(QWEN_SPECIAL)] = 0


_TEXT: Final[dict[str, Any]] = {"vocab_size": _VOCABULARY, "eos_token_id": 2, "bos_token_id": 0}
_ROWS: Final = {
    "qwen2-vl": Row(
        family="Qwen2VL",
        shows="",
        model="Qwen2VLForConditionalGeneration",
        shape={},
        fields={
            "text_config": text([2, 1, 1], **_TEXT),
            "vision_config": QWEN2_TOWER,
            **{f"{name}_id": 3 + at for at, name in enumerate(("vision_start_token", "vision_end_token"))},
            "image_token_id": 5,
            "video_token_id": 6,
        },
        before=_never_special,
    ),
    "internvl": Row(
        family="InternVL",
        shows="",
        model="InternVLForConditionalGeneration",
        shape={},
        fields={
            "text_config": text(model_type="qwen2", **_TEXT),
            "vision_config": INTERNVL_TOWER,
            "image_token_id": 5,
            "image_seq_length": 4,
            "tie_word_embeddings": False,
        },
        before=_never_special,
    ),
}
_PROCESSOR: Final[dict[str, dict[str, Any]]] = {
    "qwen2-vl": {
        "image_processor_type": "Qwen2VLImageProcessor",
        "size": {"shortest_edge": 256, "longest_edge": 8 * 8 * 64},
        "patch_size": 4,
        "merge_size": 2,
    },
    "internvl": {
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": {"height": 16, "width": 16},
        "max_patches": 4,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    },
}


@dataclass
class ServedVision:
    """A model's folder, and transformers' model of it."""

    family: str
    folder: Path
    reference: Any
    processor: ImageProcessor
    tokenizer: Tokenizer

    @property
    def image_token(self) -> int:
        found = self.tokenizer.token_id(IMAGE[self.family])
        assert found is not None
        return found

    def count(self, *files: bytes) -> int:
        """Image tokens of these files."""
        return sum(self.processor.count(self._inputs([file])[1][0]) for file in files)

    def prompt(self, conversation: str, files: list[bytes]) -> list[int]:
        """Token ids of a text that the template wrote with an image token for each of ``files``, expanded as texts, as
        the families' processors do."""
        token = IMAGE[self.family]
        pieces = conversation.split(token)
        assert len(pieces) == len(files) + 1
        expanded = pieces[0]
        for file, piece in zip(files, pieces[1:], strict=True):
            expanded += self._around(token * self.count(file)) + piece
        return self.tokenizer.encode(expanded, add_special_tokens=False)

    @torch.no_grad()
    def greedy(self, token_ids: list[int], files: list[bytes], count: int) -> list[int]:
        """transformers' greedy continuation."""
        tokens = list(token_ids)
        inputs, grids = self._inputs(files) if files else ({}, [])
        if files and isinstance(self.processor, QwenProcessor):
            inputs["image_grid_thw"] = torch.tensor(grids)
        for _ in range(count):
            ids = torch.tensor([tokens])
            more = {"mm_token_type_ids": ids.eq(self.image_token).int()} if "image_grid_thw" in inputs else {}
            tokens.append(int(self.reference(ids, **inputs, **more).logits[0, -1].argmax()))
        return tokens[len(token_ids) :]

    def _around(self, tokens: str) -> str:
        return f"<img>{tokens}</img>" if self.family == "internvl" else tokens

    def _inputs(self, files: list[bytes]) -> tuple[dict[str, torch.Tensor], list[tuple[int, int, int]]]:
        """``pixel_values`` of transformers' image processor, and the grid of each file."""
        values, grids = [], []
        for file in files:
            image = ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB")
            found = reference(self.processor)(images=[image], return_tensors="pt")
            values.append(found["pixel_values"])
            if isinstance(self.processor, QwenProcessor):
                frames, rows, columns = found["image_grid_thw"][0].tolist()
                grids.append((frames, rows, columns))
            else:
                side = self.processor.tile_height // self.processor.patch_size
                grids.append((int(found["num_patches"][0]), side, side))
        return {"pixel_values": torch.cat(values)}, grids


def save_served(folder: Path, family: str, **config: Any) -> ServedVision:
    """A folder with all that a server of this family reads. ``config``: fields of ``tokenizer_config.json``."""
    model = save_row(folder, _ROWS[family])
    special = SPECIAL[family]
    template = TEMPLATE.replace("{{ IMAGE }}", _SHOWN[family]).replace("{{ VIDEO }}", _VIDEO)
    write_tokenizer(folder, byte_level_tokenizer(special, _VOCABULARY), chat_template=template, **config)
    (folder / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR[family]), encoding="utf-8")
    processor = read_processor(folder)
    assert processor is not None
    return ServedVision(family, folder, model, processor, Tokenizer(folder))


def data_url(file: bytes) -> str:
    """A PNG as a URL that has it in itself."""
    return "data:image/png;base64," + base64.b64encode(file).decode()


def part(file: bytes, **fields: Any) -> dict[str, Any]:
    """The part of a message that has a PNG in itself."""
    return {"type": "image_url", "image_url": {"url": data_url(file), **fields}}


def words(string: str) -> dict[str, str]:
    """The part of a message that has a text."""
    return {"type": "text", "text": string}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}
