"""What can be wrong with an image, with the server's load, and with a model's processor files."""


class ImageError(ValueError):
    """An image, or what a request asks of it, that cannot be used; the message is meant for the client (400)."""


class ImagesBusyError(Exception):
    """An image cannot be decoded just now; the same request may succeed later (503)."""


class ProcessorFilesError(ValueError):
    """Processor files of a model that are missing, unreadable or not supported; the message names the file."""
