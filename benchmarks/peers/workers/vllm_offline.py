"""vLLM on CPU, compiled, both cores at work (its default leaves one out)."""

import os

from serve import options, serve


def start(wanted, **more):
    """The engine, and what makes its sampling parameters of a number of tokens."""
    os.environ.update(
        VLLM_CPU_OMP_THREADS_BIND=f"0-{wanted['threads'] - 1}",
        VLLM_CPU_NUM_OF_RESERVED_CPU="0",
        VLLM_CPU_KVCACHE_SPACE=str(max(1, round(wanted["kv_bytes"] / 2**30))),
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
    )
    from vllm import LLM, SamplingParams

    llm = LLM(
        wanted["model"],
        dtype=wanted["peer_dtype"],
        max_model_len=wanted["max_length"],
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        max_num_seqs=64,
        **more,
    )

    def params(max_tokens):
        return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)

    return llm, params


def load(**more):
    llm, params = start(options(), **more)

    def generate(prompts, max_tokens):
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        results = llm.generate(inputs, params(max_tokens), use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]

    return generate


if __name__ == "__main__":
    serve(load)
