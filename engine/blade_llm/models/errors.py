"""Errors of a model's files, of the memory it is given, and of the flags for it."""


class ModelFilesError(ValueError):
    """A model that cannot be found, fetched or read; the message names the file and what to change."""


class UnsupportedModelError(ModelFilesError):
    """A model that is intact but needs something without an implementation here."""


class UnsupportedSettingError(ModelFilesError):
    """A flag that this machine or this model cannot honour; the message says what to give instead."""


class NotEnoughMemoryError(ValueError):
    """Memory that cannot hold the model or one request; the message says which flag to change and to what."""
