"""Our engine, through its offline interface."""

from serve import options, serve


def load():
    from blade_llm import LLM, SamplingParams

    wanted = options()
    llm = LLM(
        wanted["model"],
        num_threads=wanted["threads"],
        kv_cache_bytes=wanted["kv_bytes"],
        max_model_len=wanted["max_length"],
        enable_prompt_cache=False,
        quant=wanted["quant"],
        dtype=wanted["dtype"],
    )

    def generate(prompts, max_tokens):
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        return [result.outputs[0].token_ids for result in llm.generate(prompts, params)]

    return generate


if __name__ == "__main__":
    serve(load)
