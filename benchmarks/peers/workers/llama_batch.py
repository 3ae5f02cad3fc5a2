"""llama.cpp's library through llama-cpp-python's low-level functions: greedy, every prompt a sequence of one batch."""

import ctypes

from serve import options, serve


def load():
    import llama_cpp
    import numpy

    wanted = options()
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(wanted["gguf"].encode(), llama_cpp.llama_model_default_params())
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = wanted["kv_tokens"]
    params.n_batch = params.n_ubatch = 2048
    params.n_seq_max = 16
    params.n_threads = params.n_threads_batch = wanted["threads"]
    params.kv_unified = True
    context = llama_cpp.llama_init_from_model(model, params)
    batch = llama_cpp.llama_batch_init(2048, 0, 16)

    def compute(tokens):
        """``tokens``: (token, position, sequence, whether its logits are wanted). Returns the likeliest next ones."""
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wanted_logits) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wanted_logits
        if llama_cpp.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        found = []
        for i, token in enumerate(tokens):
            if token[3]:
                pointer = llama_cpp.llama_get_logits_ith(context, i)
                logits = numpy.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (vocabulary,))
                found.append(int(logits.argmax()))
        return found

    def generate(prompts, max_tokens):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        outputs = [[] for _ in prompts]
        last = []
        for sequence, prompt in enumerate(prompts):
            parts = [(token, i, sequence, i == len(prompt) - 1) for i, token in enumerate(prompt)]
            last += compute(parts)
        for step in range(max_tokens):
            for output, token in zip(outputs, last, strict=True):
                output.append(token)
            if step + 1 < max_tokens:
                last = compute([(token, len(prompts[s]) + step, s, True) for s, token in enumerate(last)])
        return outputs

    return generate


if __name__ == "__main__":
    serve(load)
