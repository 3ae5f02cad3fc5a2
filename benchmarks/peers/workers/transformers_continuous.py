"""transformers' continuous batching: a paged KV cache and packed batches, attention by sdpa under one mask."""

import os

from serve import options, serve


def load():
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    wanted = options()
    torch.set_num_threads(wanted["threads"])
    model = AutoModelForCausalLM.from_pretrained(
        wanted["model"], dtype=getattr(torch, wanted["peer_dtype"]), attn_implementation="sdpa"
    )
    batching = ContinuousBatchingConfig(
        num_blocks=wanted["kv_tokens"] // 256,  # its blocks have 256 tokens; left alone it takes 60 % of the memory
        max_batch_tokens=2048,
        max_requests_per_batch=64,
        allow_block_sharing=False,
    )
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1)
    manager = model.init_continuous_batching(greedy, batching)
    manager.start()

    def generate(prompts, max_tokens):
        names = manager.add_requests(prompts, max_new_tokens=max_tokens)
        results = [manager.get_result() for _ in prompts]
        outputs = {result.request_id: result.generated_tokens for result in results}
        return [outputs[name] for name in names]

    return generate


if __name__ == "__main__":
    serve(load)
    os._exit(0)  # the manager's thread is no daemon: an ordinary exit would wait for it
