"""Whether a draft model is complete and fits the model that it drafts for."""

from __future__ import annotations

from pathlib import Path

from blade_llm.config import SpeculativeConfig
from blade_llm.models.config import ModelConfig
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.tensors import expected_tensors
from blade_llm.runner.draft_config import read_draft
from blade_llm.speculative_options import require_same_tokens
from blade_llm.text.errors import TokenizerFilesError
from blade_llm.text.tokenizer import Tokenizer
from blade_llm.weights.checkpoint import check_tensors, open_checkpoint


def draft_problems(
    speculative: SpeculativeConfig | None,
    model: ModelConfig,
    tokenizer: Tokenizer,
    weight_bytes: int,
    tokenizer_dir: str | None = None,
) -> tuple[list[str], list[str]]:
    """What keeps a draft model from drafting for ``model``, and what speaks against it; both empty without one.

    ``tokenizer_dir``: where its tokenizer is, if not in its folder.
    """
    if speculative is None or not speculative.draft_model:
        return [], []
    folder = Path(speculative.draft_model)
    try:
        draft = read_draft(folder, model)
        weights = open_checkpoint(folder)
        problems = [
            f"{folder}: {problem}" for problem in check_tensors(weights, expected_tensors(draft, weights.tensors))
        ]
        texts = Path(tokenizer_dir or folder)
        require_same_tokens(tokenizer.vocabulary, Tokenizer(texts).vocabulary, texts)
    except (ModelFilesError, TokenizerFilesError) as error:
        return [str(error)], []
    warnings = []
    if weights.total_bytes >= weight_bytes:
        warnings.append(
            f"the draft model {folder} has {weights.total_bytes} bytes of weights, the model {weight_bytes}: it makes "
            "nothing faster; take one of a tenth of the size as --draft.model"
        )
    return problems, warnings
