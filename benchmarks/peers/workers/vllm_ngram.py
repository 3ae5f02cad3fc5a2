"""vLLM on CPU with prompt lookup."""

from serve import options, serve
from vllm_offline import load


def load_with_ngrams():
    ngram = {"method": "ngram", "num_speculative_tokens": options()["gamma"], "prompt_lookup_max": 4}
    return load(speculative_config=ngram)


if __name__ == "__main__":
    serve(load_with_ngrams)
