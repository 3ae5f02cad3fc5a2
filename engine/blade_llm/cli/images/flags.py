"""Flags about images in requests; the limits are the fields of the same names of
:class:`~blade_llm.multimodal.options.ImageOptions` and :class:`~blade_llm.multimodal.fetching.options.FetchOptions`."""

from __future__ import annotations

from typing import Final

from blade_llm.cli.flags import Flag, boolean, byte_size, positive, seconds
from blade_llm.multimodal.options import ImageOptions

_DEFAULTS: Final = ImageOptions()
LIMITS: Final = (
    Flag(
        name="max_images_per_request",
        help="images of one request",
        kind=positive,
        default=_DEFAULTS.max_images_per_request,
    ),
    Flag(
        name="max_videos_per_request",
        help="videos of one request",
        kind=positive,
        default=_DEFAULTS.max_videos_per_request,
    ),
    Flag(
        name="max_video_frames",
        help="frames of one video: of more that are sent it is refused, of a file with more so many are taken",
        kind=positive,
        default=_DEFAULTS.max_video_frames,
    ),
    Flag(
        name="max_image_pixels",
        help="pixels an image is shrunk to at most; requests may ask for less, not for more (default: the model's "
        "max_pixels)",
        kind=positive,
    ),
    Flag(
        name="min_image_pixels",
        help="pixels an image is enlarged to at least (default: the model's min_pixels)",
        kind=positive,
    ),
    Flag(
        name="max_image_bytes",
        help="size of an image's file",
        kind=byte_size,
        default=_DEFAULTS.max_image_bytes,
    ),
    Flag(
        name="max_source_pixels",
        help="width times height of an image's file, before it is resized",
        kind=positive,
        default=_DEFAULTS.max_source_pixels,
    ),
    Flag(
        name="image_workers",
        help="most processes that decode images, for each API-server process",
        kind=positive,
        default=_DEFAULTS.image_workers,
    ),
    Flag(
        name="image_timeout",
        help="CPU seconds to decode and resize one image",
        kind=seconds,
        default=_DEFAULTS.image_timeout,
    ),
    Flag(
        name="video_timeout",
        help="CPU seconds to decode and resize a video, its frames together",
        kind=seconds,
        default=_DEFAULTS.video_timeout,
    ),
)
SOURCES: Final = (
    Flag(
        name="allowed_local_media_path",
        help="folders below which file: URLs of images may point (default: none may)",
        many=True,
        metavar="DIR",
    ),
    Flag(
        name="allowed_media_domains",
        help="hosts that images may be fetched from: cdn.example, or *.example for every name below it (default: any "
        "with a public address)",
        many=True,
        metavar="HOST",
    ),
    Flag(
        name="private_media_domains",
        help="hosts whose addresses may be private ones (default: none)",
        many=True,
        metavar="HOST",
    ),
)
IMAGE_FLAGS: Final = (
    Flag(
        name="with_visual",
        help="load the vision tower of a model that has one; false: its memory is free for the KV cache, and images "
        "are refused",
        kind=boolean,
        default=True,
    ),
    Flag(
        name="encoder_cache_bytes",
        help="embeddings of images that are kept, of models that see any",
        kind=byte_size,
        default=512 << 20,
    ),
    *LIMITS,
    *SOURCES,
)
