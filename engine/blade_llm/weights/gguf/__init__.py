"""GGUF files (the format of llama.cpp) as model folders: configuration and tokenizer from the metadata, tensors by
their Hugging Face names. Reading one takes the ``gguf`` package (``pip install 'bladellm[gguf]'``)."""
