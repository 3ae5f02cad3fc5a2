"""Errors of the engine about one request, on their way to the client."""

from pathlib import Path

import msgspec
import pytest
from engine_support.tiny_text import write_tokenizer

from blade_llm.api.common.errors import ApiError
from blade_llm.api.generation.result import Choice
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.output import RequestError, RequestOutput
from blade_llm.scheduling.request import RequestRefusedError
from blade_llm.scheduling.results import invalid_outputs
from blade_llm.text.tokenizer import Tokenizer


def test_a_busy_engine_is_not_the_clients_fault(tmp_path: Path) -> None:
    choice = Choice(0, Tokenizer(write_tokenizer(tmp_path)), [5], SamplingParams(), "prompt")
    error = RequestError(kind="overloaded", message="busy: with others; try again")
    with pytest.raises(ApiError) as caught:
        choice.add(RequestOutput(request_id="1", finish_reason="abort", error=error))
    assert caught.value.status == 503
    assert caught.value.headers["retry-after"] == "1"


def test_a_broken_model_is_not_the_clients_fault_either(tmp_path: Path) -> None:
    choice = Choice(0, Tokenizer(write_tokenizer(tmp_path)), [5], SamplingParams(), "prompt")
    with pytest.raises(ApiError) as caught:
        choice.add(invalid_outputs(["1"])[0])
    assert (caught.value.status, caught.value.detail.code) == (500, "invalid_logits")
    assert "NaN" in caught.value.detail.message


@pytest.mark.parametrize(
    ("error", "message", "param"),
    [
        (
            RequestError(kind="invalid_structure", field="structure", message="it has no end"),
            "guided_json: it has no end",
            "guided_json",
        ),
        (RequestError(field="beam_width", message="is 9; lower it"), "beam_width is 9; lower it", "beam_width"),
        (RequestError(message="the prompt has no tokens"), "the prompt has no tokens", "prompt"),
    ],
)
def test_an_error_names_the_requests_own_field(tmp_path: Path, error: RequestError, message: str, param: str) -> None:
    names = {"structure": "guided_json"}
    choice = Choice(0, Tokenizer(write_tokenizer(tmp_path)), [5], SamplingParams(), "prompt", field_names=names)
    with pytest.raises(ApiError) as caught:
        choice.add(RequestOutput(request_id="1", finish_reason="abort", error=error))
    assert (caught.value.status, caught.value.detail.message, caught.value.detail.param) == (400, message, param)


def test_a_refusal_keeps_its_type_across_the_process_boundary() -> None:
    error = RequestError(kind="invalid_structure", field="structure", message="it has no end")
    sent = msgspec.msgpack.encode(RequestOutput(request_id="1", finish_reason="abort", error=error))
    assert msgspec.msgpack.decode(sent, type=RequestOutput).error == error
    assert str(RequestRefusedError(error)) == "structure: it has no end"
