"""Which positions a draft model is told to compute: none twice, none that others left, none behind rejected tokens."""

from blade_llm.cache.manager import KVCacheManager
from blade_llm.decoding.draft_model import CATCH_UP, DraftModel
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.request import Request

CACHE = KVCacheManager(1000)


def running(tokens: int, first_block: int = 0, first_token: int = 0) -> Request:
    """A request with so many known tokens and blocks for more."""
    prompt = list(range(first_token, first_token + tokens))
    request = Request("r", prompt, SamplingParams(max_tokens=100))
    request.chain = CACHE.new_chain()
    request.chain.extend(prompt, tokens // 16)
    request.block_table = list(range(first_block, first_block + tokens // 16 + 2))
    return request


def draft(method: DraftModel, request: Request, count: int = 3) -> tuple[int, tuple[int, int] | None]:
    """One step: the request's candidate is taken."""
    (candidate,) = method.candidates([request], [count])
    assert candidate.kind == 0
    return method.drafted(request, count)


def test_the_prompt_comes_first_and_then_what_was_accepted() -> None:
    method, request = DraftModel(16, 4096), running(20)
    assert draft(method, request) == (3, (0, 20))
    request.token_ids += [7, 8]  # one of three accepted, and the token after it
    assert draft(method, request) == (3, (21, 22))
    request.token_ids += [1, 2, 3, 4]  # all accepted: the last draft token was not computed
    assert draft(method, request) == (3, (24, 26))


def test_a_long_prompt_is_computed_in_chunks_without_drafts() -> None:
    method, request = DraftModel(16, 4096), running(CATCH_UP + 100)
    assert draft(method, request) == (0, (0, CATCH_UP))
    assert draft(method, request) == (0, (CATCH_UP, CATCH_UP + 99))
    assert draft(method, request) == (3, (CATCH_UP + 99, CATCH_UP + 100))


def test_all_together_catch_up_by_one_chunk_a_step() -> None:
    method = DraftModel(16, 4096)
    requests = [running(400), running(400)]
    method.candidates(requests, [3, 3])
    ranges = [method.drafted(request, 3)[1] for request in requests]
    assert ranges == [(0, 399), (0, CATCH_UP - 399)]


def test_nothing_is_computed_where_no_token_is_worth_it() -> None:
    method, request = DraftModel(16, 4096), running(20)
    assert draft(method, request, 3)[0] == 3
    method.candidates([request], [3])
    assert method.drafted(request, 0) == (0, None)


def test_what_another_request_left_in_the_same_block_is_not_computed_again() -> None:
    method, first = DraftModel(16, 4096), running(40)
    draft(method, first)
    method.forget(first)
    assert draft(method, running(40)) == (3, (32, 40))
    assert draft(method, running(40, first_block=500)) == (3, (0, 40)), "the content is the same, the block is not"
    assert draft(method, running(40, first_token=5)) == (3, (0, 40)), "the block is the same, the content is not"


def test_rejected_tokens_are_never_taken_for_computed() -> None:
    """A block that a request filled with draft tokens counts only as far as they were accepted."""
    method, request = DraftModel(16, 4096), running(30)
    draft(method, request, 3)  # positions 30 and 31 were computed with draft tokens
    request.token_ids += [900]
    request.chain.extend([*request.token_ids, 901], 2)
    method.forget(request)
    again = Request("s", [*request.token_ids, 901, 902], SamplingParams(max_tokens=100))
    again.chain, again.block_table = request.chain, request.block_table
    assert draft(method, again) == (3, (16, 33))


def test_a_preempted_request_begins_anew() -> None:
    method, request = DraftModel(16, 4096), running(20)
    draft(method, request)
    request.block_table = [77, 78, 79]
    assert draft(method, request) == (3, (0, 20))


def test_sequences_that_are_too_long_for_it_get_no_drafts() -> None:
    method, request = DraftModel(16, 22), running(20)
    assert method.candidates([request], [3])[0].kind == -1
    assert method.candidates([request], [2])[0].kind == 0
