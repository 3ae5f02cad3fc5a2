"""transformers' continuous batching (``generate_batch``)."""

from serve import options, serve


def load():
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    wanted = options()
    torch.set_num_threads(wanted["threads"])
    model = AutoModelForCausalLM.from_pretrained(wanted["model"], dtype=torch.bfloat16, attn_implementation="sdpa")

    @torch.inference_mode()
    def generate(prompts, max_tokens):
        config = GenerationConfig(max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1, use_cuda_graph=False)
        results = model.generate_batch(inputs=prompts, generation_config=config, progress_bar=False)
        by_prompt = {tuple(result.prompt_ids): result.generated_tokens for result in results.values()}
        return [list(by_prompt[tuple(prompt)]) for prompt in prompts]

    return generate


if __name__ == "__main__":
    serve(load)
