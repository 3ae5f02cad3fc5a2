"""Limits of what one request's body may consist of, however large all of it may be."""

from typing import Final

from blade_router.http.errors import Refused
from blade_router.request.abridge import PARSED_WHOLE
from blade_router.request.media import LEAST_IMAGE_BYTES
from blade_router.request.request import ClientRequest

LEAST_PART_LIMIT: Final = PARSED_WHOLE
"""Bytes: in a body that is parsed whole no part is measured."""


class PartLimits:
    """The limits of one request; no dataclass, whose constructor would stay interpreted.

    Args:
        max_images: pictures and videos in its messages; 0: any number.
        max_part_bytes: the longest text or file, as it stands in the JSON, at least ``LEAST_PART_LIMIT``; 0: as long as
            the body may be.
    """

    __slots__ = ("max_images", "max_part_bytes")

    def __init__(self, max_images: int = 0, max_part_bytes: int = 0) -> None:
        self.max_images = max_images
        self.max_part_bytes = max_part_bytes

    def check(self, request: ClientRequest) -> None:
        """Raises:
        Refused: 400, there are too many images; 413, one of its parts is too large.
        """
        abridged, most = request.abridged, self.max_part_bytes
        if abridged is not None and most and abridged.longest > most:
            raise Refused(
                413,
                f"a part of the request body has {abridged.longest} bytes, and the limit is {most} (--max_part_bytes); "
                "send a smaller picture or file, or its URL",
                code="part_too_large",
            )
        most = self.max_images
        if most and len(request.body) > most * LEAST_IMAGE_BYTES:
            images = request.media.images
            if images > most:
                raise Refused(
                    400,
                    f"the request has {images} images and videos, and the limit is {most} (--max_images); send fewer",
                    code="too_many_images",
                )
