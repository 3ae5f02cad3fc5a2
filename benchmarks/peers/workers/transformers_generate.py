"""transformers' own ``generate``, all prompts of one length as one static batch."""

from serve import options, serve


def load():
    import torch
    from transformers import AutoModelForCausalLM

    wanted = options()
    torch.set_num_threads(wanted["threads"])
    model = AutoModelForCausalLM.from_pretrained(
        wanted["model"], dtype=getattr(torch, wanted["peer_dtype"]), attn_implementation="sdpa"
    )

    @torch.inference_mode()
    def generate(prompts, max_tokens):
        ids = torch.tensor(prompts)
        result = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            do_sample=False,
        )
        return result[:, ids.shape[1] :].tolist()

    return generate


if __name__ == "__main__":
    serve(load)
