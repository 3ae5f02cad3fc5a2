"""What can be wrong with a tokenizer's files."""


class TokenizerFormatError(ValueError):
    """Files that are missing, broken, or of a form that is not read; the message names the file and what to do."""
