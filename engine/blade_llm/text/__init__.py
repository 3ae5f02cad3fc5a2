"""Between text and token ids: tokenizer, chat template, incremental detokenizer, stop strings. No torch, no HTTP."""
