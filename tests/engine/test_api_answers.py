"""What the engine says of a request it gives up, on its way to the client."""

from pathlib import Path

import pytest
from engine_support.tiny_text import write_tokenizer

from blade_llm.api.answers import Choice
from blade_llm.api.errors import ApiError
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.output import RequestOutput
from blade_llm.text.tokenizer import Tokenizer


def test_a_busy_engine_is_not_the_clients_fault(tmp_path: Path) -> None:
    choice = Choice(0, Tokenizer(write_tokenizer(tmp_path)), [5], SamplingParams(), "prompt")
    with pytest.raises(ApiError) as caught:
        choice.add(RequestOutput(request_id="1", finish_reason="abort", error="busy: with others; try again"))
    assert caught.value.status == 503
    assert caught.value.headers["retry-after"] == "1"
