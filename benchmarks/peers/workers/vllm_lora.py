"""vLLM on CPU with LoRA adapters: each prompt has one, or none."""

from serve import options, serve
from vllm_offline import start


def load():
    wanted = options()
    llm, params = start(wanted, enable_lora=True, max_lora_rank=wanted["rank"], max_loras=8, max_cpu_loras=64)
    from vllm.lora.request import LoRARequest

    numbers = {path: number for number, path in enumerate(wanted["adapters"], 1)}

    def generate(prompts, max_tokens, adapters=()):
        requests = [LoRARequest(path, numbers[path], path) if path else None for path in adapters] or None
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        results = llm.generate(inputs, params(max_tokens), use_tqdm=False, lora_request=requests)
        return [list(result.outputs[0].token_ids) for result in results]

    return generate


if __name__ == "__main__":
    serve(load)
