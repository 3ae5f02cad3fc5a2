"""Lookahead decoding (Fu et al., arXiv 2402.02057): a model guesses its own later tokens in steps that decode."""
