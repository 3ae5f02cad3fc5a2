"""Files that are no image, or are broken: errors that say what to change."""

from __future__ import annotations

import io
import random

import pytest
from engine_support import image_bombs
from engine_support.image_cases import CASES_OF_KINDS, encode, exif, waves
from PIL import Image, ImageOps

from blade_llm.multimodal.decoding import decode
from blade_llm.multimodal.errors import ImageError
from blade_llm.multimodal.processors.smart_resize import check_ratio

LIMIT = 64_000_000


def _decode(data: bytes, max_pixels: int = LIMIT) -> Image.Image:
    return decode(data, max_pixels, check_ratio)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes"),
        (image_bombs.SVG, "SVG.*send PNG"),
        (b"\xef\xbb\xbf  " + image_bombs.SVG, "SVG"),
        (image_bombs.HTML, "web page"),
        (b'{"error": "expired"}', "no known format"),
        (b"\x00\x00\x00\x20ftypavif" + bytes(40), "AVIF"),
        (b"\x00\x00\x00\x20ftypheic" + bytes(40), "HEIC"),
        (b"\x00\x00\x00\x20ftypisom" + bytes(40), "video"),
        (b"%PDF-1.7\n", "PDF"),
        (b"\xff\x0a" + bytes(40), "JPEG XL"),
        (b"\x00\x00\x01\x00\x01\x00", "ICO"),
        (image_bombs.GOOD[:20], "broken at their beginning"),
        (b"\x89PNG\r\n\x1a\n", "broken at their beginning"),
        (b"GIF89a", "broken at their beginning"),
        (b"RIFF\x00\x00\x00\x00WEBP", "broken at their beginning"),
        (image_bombs.blank_png(20_000, 20_000), "400000000 pixels, and the limit is 64000000: send a smaller"),
        (image_bombs.webp_header(16_383, 16_383), "16383 x 16383"),
        (image_bombs.blank_png(1, 4000), "200 times the other"),
        (image_bombs.blank_png(0, 8), "broken|no pixels"),
        (image_bombs.png_with_text(80 << 20), "broken"),
        (image_bombs.tiff_with_strip(1 << 30), "broken"),
    ],
)
def test_files_that_are_no_image(data: bytes, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        _decode(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_truncated_files(kind: str) -> None:
    with pytest.raises(ImageError, match=r"truncated or broken|broken at their beginning"):
        _decode(image_bombs.truncated(kind))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_the_header_is_read_before_anything_is_decoded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: Image.Image) -> None:
        raise AssertionError("decoded")

    data = encode(Image.fromarray(waves(60, 101, 3)), kind)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", load)
    with pytest.raises(ImageError, match="101 x 60 = 6060 pixels, and the limit is 6059"):
        _decode(data, 6059)
    with pytest.raises(ImageError, match="broken: decoded"):
        _decode(data, 6060)


@pytest.mark.parametrize("arguments", [{"lossless": True}, {"quality": 50}, {"lossless": True, "exif": exif(3)}])
def test_the_size_of_webp_is_read_without_its_decoder(
    arguments: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all three kinds of file: lossless, lossy, extended."""
    data = encode(Image.fromarray(waves(60, 101, 3)), "WEBP", **arguments)

    def open(*arguments: object, **others: object) -> Image.Image:
        raise AssertionError("opened")

    monkeypatch.setattr(Image, "open", open)
    with pytest.raises(ImageError, match="101 x 60"):
        _decode(data, 6059)
    with pytest.raises(ImageError, match="no known format"):
        _decode(data, 6060)


def test_a_frame_larger_than_its_gif() -> None:
    """Pillow makes room for it, or refuses it; not more than the limit."""
    with pytest.raises(ImageError):
        _decode(image_bombs.gif_with_frame_beyond(60_000))


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "TIFF"])
def test_of_several_pictures_the_first_counts(kind: str) -> None:
    pictures = [Image.new("RGB", (40, 30), colour) for colour in ("red", "green", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(pictures[0], kind, save_all=True, append_images=pictures[1:], **options)
    assert _decode(data).getcolors() == [(1200, (255, 0, 0))]


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_transparency_is_put_on_white(mode: str) -> None:
    """Not dropped, which would show the black beneath; in strips, whatever their number."""
    image = Image.new(mode, (1500, 1500))
    assert _decode(encode(image, "PNG")).getcolors() == [(1500 * 1500, (255, 255, 255))]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright(orientation: int) -> None:
    image = Image.fromarray(waves(20, 31, 3))
    data = encode(image, "PNG", exif=exif(orientation))
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    decoded = _decode(data)
    assert decoded.size == expected.size == ((31, 20) if orientation < 5 else (20, 31))
    assert decoded.tobytes() == expected.tobytes()


def test_an_unreadable_exif_turns_nothing() -> None:
    image = Image.fromarray(waves(20, 31, 3))
    data = encode(image, "PNG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff")
    assert _decode(data).tobytes() == image.tobytes()


@pytest.mark.parametrize("kind", CASES_OF_KINDS)
def test_damaged_files_give_a_picture_or_an_error(kind: str) -> None:
    """Bytes changed at random places: nothing else comes out, and no warning."""
    data = CASES_OF_KINDS[kind]
    random_places = random.Random(kind)
    for _ in range(15):
        damaged = bytearray(data)
        for _ in range(random_places.randint(1, 8)):
            damaged[random_places.randrange(len(damaged))] = random_places.randrange(256)
        try:
            assert _decode(bytes(damaged), 1 << 22).mode == "RGB"
        except ImageError as error:
            assert str(error)  # noqa: PT017
