"""Small models with random weights of families that publish large ones: their shape, tokenizer and template."""
