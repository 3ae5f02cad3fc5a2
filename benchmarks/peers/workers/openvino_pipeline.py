"""OpenVINO GenAI's continuous batching pipeline; the type it computes in is its own choice."""

from serve import options, serve


def load():
    import numpy
    import openvino
    import openvino_genai as genai

    wanted = options()
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = wanted["kv_tokens"] // 32  # its blocks on CPU have 32 tokens
    scheduler.enable_prefix_caching = False
    scheduler.max_num_batched_tokens = 2048
    pipeline = genai.ContinuousBatchingPipeline(
        wanted["model"], scheduler, "CPU", {"INFERENCE_NUM_THREADS": wanted["threads"]}
    )

    def generate(prompts, max_tokens):
        config = genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        inputs = [openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)) for prompt in prompts]
        results = pipeline.generate(inputs, [config] * len(inputs))
        return [list(result.m_generation_ids[0]) for result in results]

    return generate


if __name__ == "__main__":
    serve(load)
