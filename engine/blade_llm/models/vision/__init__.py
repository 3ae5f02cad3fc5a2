"""Vision towers: embeddings for a text model out of the pixels of images. No torch in ``config``, ``names``,
``memory`` and ``geometry``."""
