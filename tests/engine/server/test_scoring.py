"""``/v1/score`` and ``/v1/rerank`` of a real server with a cross-encoder, against transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from engine_support.server_process import ServerProcess, running_server
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from blade_llm.text.tokenizer import Tokenizer as OurTokenizer

WORDS = [
    "what", "does", "len", "do", "it", "counts", "sorts", "a", "list",
    "the", "cat", "sat", "on", "mat", "python", "function", "length", "of",
]  # fmt: skip
QUERY = "what does len do"
DOCUMENTS = ["it counts", "it sorts a list", "the cat sat on the mat", "the length of a list", "len"]


def save_tokenizer(folder: Path) -> None:
    """Words, joined as BERT joins a pair."""
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"sep_token": "[SEP]", "cls_token": "[CLS]"}))


@dataclass(frozen=True)
class Scorer:
    server: ServerProcess
    folder: Path
    reference: Any

    def logit(self, first: str, second: str, limit: int | None = None) -> float:
        """transformers' of a pair."""
        token_ids, begin = OurTokenizer(self.folder).encode_pair(first, second, limit)
        kinds = [int(index >= begin) for index in range(len(token_ids))]
        with torch.no_grad():
            found = self.reference(torch.tensor([token_ids]), token_type_ids=torch.tensor([kinds]))
        return float(found.logits[0, 0])

    def score(self, first: str, second: str) -> float:
        return 1 / (1 + math.exp(-self.logit(first, second)))


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scorer]:
    from transformers import BertConfig, BertForSequenceClassification

    folder: Path = tmp_path_factory.mktemp("scorer")
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=40, num_labels=1,
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    flags = ("--task", "score", "--load_format", "auto", "--dtype", "float32", "--served_model_name", "scorer")
    with running_server(tmp_path_factory.mktemp("server"), folder, *flags, engine="real") as server:
        yield Scorer(server, folder, model)


def test_a_pair_has_types(scorer: Scorer) -> None:
    tokenizer = OurTokenizer(scorer.folder)
    assert tokenizer.encode_pair("len", "a list") == ([2, 6, 3, 11, 12, 3], 3)
    assert tokenizer.encode_pair("len", "a list of", limit=5) == ([2, 6, 3, 11, 3], 3)
    assert len(tokenizer.encode_pair("what does len do", "a list", limit=3)[0]) == 7


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_documents_are_ordered(scorer: Scorer, path: str) -> None:
    body = scorer.server.post(path, model="scorer", query=QUERY, documents=DOCUMENTS).json()
    expected = [scorer.score(QUERY, document) for document in DOCUMENTS]
    assert body["id"].startswith("rerank-")
    assert body["model"] == "scorer"
    assert [each["index"] for each in body["results"]] == sorted(range(5), key=lambda index: -expected[index])
    for each in body["results"]:
        assert each["relevance_score"] == pytest.approx(expected[each["index"]], abs=1e-5)
        assert each["document"] == {"text": DOCUMENTS[each["index"]]}
    tokens = sum(len((QUERY + " " + document).split()) + 3 for document in DOCUMENTS)
    assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_the_best_without_their_texts(scorer: Scorer) -> None:
    documents = [{"text": text} for text in DOCUMENTS]
    body = scorer.server.post("/v1/rerank", query=QUERY, documents=documents, top_n=2, return_documents=False).json()
    whole = scorer.server.post("/v1/rerank", query=QUERY, documents=DOCUMENTS, top_n=0).json()
    assert len(whole["results"]) == 5
    assert [set(each) for each in body["results"]] == [{"index", "relevance_score"}] * 2
    assert [each["index"] for each in body["results"]] == [each["index"] for each in whole["results"][:2]]


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_pairs_are_scored(scorer: Scorer, path: str) -> None:
    one = scorer.server.post(path, text_1=QUERY, text_2=DOCUMENTS[0]).json()
    assert (one["object"], one["data"][0]["object"]) == ("list", "score")
    assert one["data"][0]["score"] == pytest.approx(scorer.score(QUERY, DOCUMENTS[0]), abs=1e-5)
    many = scorer.server.post(path, text_1=QUERY, text_2=DOCUMENTS, use_activation=False).json()["data"]
    assert [each["index"] for each in many] == list(range(5))
    logits = [scorer.logit(QUERY, document) for document in DOCUMENTS]
    assert [each["score"] for each in many] == pytest.approx(logits, abs=1e-5)
    both = scorer.server.post(path, text_1=[QUERY, "the cat"], text_2=DOCUMENTS[:2]).json()["data"]
    assert both[1]["score"] == pytest.approx(scorer.score("the cat", DOCUMENTS[1]), abs=1e-5)


def test_a_long_document_is_cut_if_asked(scorer: Scorer) -> None:
    long = " ".join(WORDS * 5)
    refused = scorer.server.post("/v1/rerank", query=QUERY, documents=["len", long])
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    for keep, limit in ((-1, 40), (20, 20)):
        body = scorer.server.post(
            "/v1/score", text_1=QUERY, text_2=long, truncate_prompt_tokens=keep, use_activation=False
        ).json()
        assert body["usage"]["total_tokens"] == limit
        assert body["data"][0]["score"] == pytest.approx(scorer.logit(QUERY, long, limit), abs=1e-5)
    query = scorer.server.post("/v1/score", text_1=long, text_2="len", truncate_prompt_tokens=-1)
    assert (query.status_code, query.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_unknown_fields_are_listed(scorer: Scorer) -> None:
    documents = [{"text": "x", "id": 5}]
    response = scorer.server.post("/v1/rerank", query="x", documents=documents, temperature=1)
    assert response.headers["x-blade-ignored"] == "temperature, documents[].id"
    response = scorer.server.post("/v1/score", text_1="x", text_2="y", dimensions=5)
    assert response.headers["x-blade-ignored"] == "dimensions"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/rerank", {"documents": ["x"]}, "query"),
        ("/v1/rerank", {"query": "x"}, "documents"),
        ("/v1/rerank", {"query": "x", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "x", "documents": ["x"] * 2049}, "documents"),
        ("/v1/rerank", {"query": "x", "documents": ["x"], "top_n": -1}, "top_n"),
        ("/v1/rerank", {"query": "x", "documents": ["x"], "use_activation": "maybe"}, "use_activation"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ],
)
def test_bad_inputs(scorer: Scorer, path: str, fields: dict[str, Any], param: str) -> None:
    response = scorer.server.post(path, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_nothing_else_is_served(scorer: Scorer, server: ServerProcess) -> None:
    for path in ("/v1/chat/completions", "/v1/embeddings"):
        response = scorer.server.post(path, input="x", messages=[])
        assert (response.status_code, response.json()["error"]["code"]) == (404, "task_not_served")
        assert "/v1/rerank" in response.json()["error"]["message"]
    served = set(httpx.get(f"{scorer.server.url}/openapi.json").json()["paths"])
    assert {"/v1/score", "/score", "/v1/rerank", "/rerank", "/tokenize"} <= served
    assert not {"/v1/embeddings", "/v1/completions"} & served
    other = server.post("/v1/rerank", query="x", documents=["y"])
    assert (other.status_code, other.json()["error"]["code"]) == (404, "task_not_served")
    assert "--task score" in other.json()["error"]["message"]
