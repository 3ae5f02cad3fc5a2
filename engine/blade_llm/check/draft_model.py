"""Whether a draft model is complete and fits the model that it drafts for."""

from __future__ import annotations

from pathlib import Path

from blade_llm.config import SpeculativeConfig
from blade_llm.models.config import ModelConfig
from blade_llm.models.errors import ModelFilesError
from blade_llm.runner.draft_config import read_draft
from blade_llm.speculative_options import require_same_tokens
from blade_llm.text.errors import TokenizerFilesError
from blade_llm.text.tokenizer import Tokenizer
from blade_llm.weights.checkpoint import check_weights, open_checkpoint


def draft_problems(
    speculative: SpeculativeConfig | None,
    model_dir: Path,
    model: ModelConfig,
    tokenizer: Tokenizer,
    weight_bytes: int,
    tokenizer_dir: str | None = None,
) -> tuple[list[str], list[str]]:
    """What keeps a draft model or a head from drafting for ``model``, in ``model_dir``, and what speaks against it;
    both empty without one.

    ``tokenizer_dir``: where its tokenizer is, if not in its folder.
    """
    try:
        found = read_draft(speculative, model_dir, model)
        if speculative is None or found is None:
            return [], []
        folder, draft = found
        weights = open_checkpoint(folder)
        wrong = check_weights(weights, draft)
        problems = [f"{folder}: {problem}" for problem in wrong]
        if speculative.method == "draft":
            texts = Path(tokenizer_dir or folder)
            require_same_tokens(tokenizer.vocabulary, Tokenizer(texts).vocabulary, texts)
    except (ModelFilesError, TokenizerFilesError) as error:
        return [str(error)], []
    warnings = []
    if speculative.method != "mtp" and weights.total_bytes >= weight_bytes:
        warnings.append(
            f"the draft model {folder} has {weights.total_bytes} bytes of weights, the model {weight_bytes}: it makes "
            "nothing faster; take one of a tenth of the size as --draft.model"
        )
    return problems, warnings
