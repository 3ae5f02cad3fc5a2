"""Files that are no image, are broken, or unpack to far more than they are."""

from __future__ import annotations

import struct
import zlib
from typing import Final

from engine_support.image_cases import encode, waves
from PIL import Image

GOOD: Final = encode(Image.fromarray(waves(60, 80, 3)), "PNG")
SVG: Final = b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect/></svg>'
HTML: Final = b"<!DOCTYPE html><html><body>404 Not Found</body></html>"


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def blank_png(height: int, width: int, rows: int | None = None) -> bytes:
    """All black, one bit a pixel; of ``rows`` rows only (a truncated one), all by default."""
    body = zlib.compressobj(9)
    line = bytes(1 + (width + 7) // 8)
    packed = b"".join(body.compress(line) for _ in range(height if rows is None else rows)) + body.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", packed) + png_chunk(b"IEND", b"")


def png_with_text(size: int) -> bytes:
    """A tiny picture with a compressed comment of ``size`` bytes."""
    body = zlib.compressobj(9)
    packed = b"".join(body.compress(bytes(1 << 16)) for _ in range(size >> 16)) + body.flush()
    return GOOD[:33] + png_chunk(b"zTXt", b"Comment\x00\x00" + packed) + GOOD[33:]


def tiff_with_strip(size: int) -> bytes:
    """4 x 4 pixels whose only strip says that it has ``size`` bytes."""
    tags = [(256, 4, 4), (257, 4, 4), (258, 3, 8), (259, 3, 5), (262, 3, 1), (273, 4, 8), (278, 4, 4), (279, 4, size)]
    entries = b"".join(struct.pack("<HHIHxx" if kind == 3 else "<HHII", tag, kind, 1, n) for tag, kind, n in tags)
    return b"II*\x00\x08\x00\x00\x00" + struct.pack("<H", len(tags)) + entries + bytes(4)


def webp_header(height: int, width: int) -> bytes:
    """The beginning of an extended file, which says how large its canvas is."""
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<IB3x", 10, 2) + sides + b"ANIM" + struct.pack("<IIH", 6, 0, 0)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def gif_with_frame_beyond(side: int) -> bytes:
    """1 x 1 pixel, whose first frame has ``side`` x ``side``."""
    screen = struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + bytes(6)
    frame = b"," + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\x02\x02L\x01\x00;"
    return b"GIF89a" + screen + frame


def truncated(kind: str) -> bytes:
    data = encode(Image.fromarray(waves(200, 300, 3)), kind)
    return data[: len(data) // 2]


def slow_png(side: int) -> bytes:
    """A lot to unpack and to resize."""
    return encode(Image.new("RGB", (side, side), (9, 99, 199)), "PNG", compress_level=1)
