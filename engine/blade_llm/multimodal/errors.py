"""What can be wrong with an image, with the server's load, and with a model's processor files."""


class ImageError(ValueError):
    """An image or video, or what a request asks of it, that cannot be used; the message is meant for the client (400).
    Of one of several images it begins with ``image 2 of 3: ``.

    Args:
        problem: what is wrong.
        index: which of the request's images is meant.
        count: how many it has.
        name: what they are.
    """

    def __init__(self, problem: str, index: int | None = None, count: int = 1, name: str = "image") -> None:
        super().__init__(problem if index is None or count == 1 else f"{name} {index + 1} of {count}: {problem}")
        self.problem = problem
        """The message for those who know the image's place by another name."""
        self.index = index
        """None: all are meant."""


class ImagesBusyError(Exception):
    """An image cannot be decoded just now; the same request may succeed later (503)."""


class ProcessorFilesError(ValueError):
    """Processor files of a model that are missing, unreadable or not supported; the message names the file."""
