"""A model folder's tokenizer as the text of a ``tokenizer.json``: read, or converted from what the folder has."""

from blade_llm.tokenizer_files.errors import TokenizerFormatError as TokenizerFormatError
from blade_llm.tokenizer_files.read import read_tokenizer_json as read_tokenizer_json
from blade_llm.tokenizer_files.read import special_names as special_names
