"""What can be wrong with a model's files, or with the memory it is given."""


class ModelFilesError(ValueError):
    """A model that cannot be found, fetched or read; the message names the file and what to change."""


class UnsupportedModelError(ModelFilesError):
    """A model that is intact but needs something without an implementation here."""


class NotEnoughMemoryError(ValueError):
    """Memory that cannot hold the model or one request; the message says which flag to change and to what."""
