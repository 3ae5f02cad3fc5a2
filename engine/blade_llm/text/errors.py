"""What can be wrong with a tokenizer's or template's files, or with a conversation put into a template."""


class TokenizerFilesError(ValueError):
    """Tokenizer or chat template files that are missing or unreadable; the message names the file and what to do."""


class UnreadableTextError(ValueError):
    """A text that the tokenizer's patterns give up on; the message is meant for the client."""


class ChatTemplateError(ValueError):
    """A conversation the chat template cannot render (the template's own complaint, where it has one)."""


class TemplatesBusyError(Exception):
    """A chat template of a request cannot be rendered just now; the same request may succeed later."""
