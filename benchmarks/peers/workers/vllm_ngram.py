"""vLLM on CPU with prompt lookup."""

from serve import options, serve
from vllm_offline import start


def load():
    wanted = options()
    ngram = {"method": "ngram", "num_speculative_tokens": wanted["gamma"], "prompt_lookup_max": 4}
    llm, params = start(wanted, speculative_config=ngram)

    def generate(prompts, max_tokens):
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        results = llm.generate(inputs, params(max_tokens), use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]

    return generate


if __name__ == "__main__":
    serve(load)
