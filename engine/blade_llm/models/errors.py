"""What can be wrong with a model's files."""


class ModelFilesError(ValueError):
    """A model folder that cannot be served; the message names the file and what to change."""


class UnsupportedModelError(ModelFilesError):
    """An architecture without an implementation here."""
