"""What an image file says of its own pixels: which way is up, how transparent, of which colours, how many bits.

Every reader of encoded images takes its pixels from `rendered`, so that all give what a viewer shows.
"""

from __future__ import annotations

import io
from functools import lru_cache
from typing import TYPE_CHECKING

from fedbench.errors import FedbenchError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageCms import ImageCmsTransform

#: EXIF's tag of the orientation; from 5 on, width and height are exchanged.
_ORIENTATION, _TURNED = 0x0112, 5
#: TIFF's tag of the bits of each channel.
_BITS = 258
#: What JPEG 2000 data begin with (in a .jp2 file behind its boxes), and where then the first channel's bits are.
_CODESTREAM, _SSIZ = b"\xff\x4f\xff\x51", 42
#: Pillow's modes of grey images.
_GREY = ("1", "L", "I", "F")
#: Colour space of an ICC profile -> the mode of the images that it is for.
_SPACES = {"GRAY": "L", "RGB": "RGB", "CMYK": "CMYK"}


def rendered(image: Image, data: bytes | bytearray, where: str) -> Image:
    """The pixels of an opened image in mode L or RGB, 8 bits a channel, as the file says that they are to be seen.

    Turned upright by its EXIF orientation; transparent pixels lie on white; colours of another profile than sRGB are
    converted to sRGB. `data` is the encoded image, which has not been decoded before. Raises FedbenchError, with
    `where`, for more than 8 bits a channel in any mode, colours in CIELAB, and a colour profile that is damaged or for
    other images.
    """
    if _is_deep(image, data):
        raise FedbenchError(
            f"{where} has pixels of more than 8 bits (mode {image.mode})", "scale it to 8 bits a channel"
        )
    if image.mode == "LAB":  # Pillow knows no way to RGB
        raise FedbenchError(f"{where} has colours in CIELAB (mode LAB)", "save it in RGB")
    image.load()  # before the orientation is read: Pillow itself turns TIFF images, and a PNG may say it at its end
    profile, orientation = image.info.get("icc_profile"), orientation_of(image)
    image = _opaque(image)
    if profile:
        image = _in_srgb(image, profile, where)
    if image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    return _upright(image, orientation)


def size_of(image: Image) -> tuple[int, int]:
    """Width and height of an opened image as `rendered` gives it."""
    width, height = image.size
    turned = image.format != "TIFF" and orientation_of(image) >= _TURNED  # of a TIFF image Pillow exchanges them
    return (height, width) if turned else (width, height)


def channels_of(image: Image) -> int:
    """1 for a grey image, else 3."""
    return 1 if image.mode.startswith(_GREY) else 3


def orientation_of(image: Image) -> int:
    """EXIF's orientation, 1 to 8; 1 (upright) if the file has none, or none that can be read, as viewers do."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged EXIF raises anything
        return 1
    return orientation if orientation in range(1, 9) else 1


def _is_deep(image: Image, data: bytes | bytearray) -> bool:
    """Whether it has more than 8 bits a channel. Pillow decodes such images in colour to their high bytes."""
    if image.mode.startswith(("I", "F")):
        return True
    how = image.tile[0][3] if image.tile else ""  # the arguments of Pillow's decoder
    if image.format == "PPM":  # mode and largest value
        return isinstance(how, tuple) and len(how) > 1 and isinstance(how[1], int) and how[1] > 255
    if image.format == "TIFF":
        return bool(max(image.tag_v2.get(_BITS, (1,))) > 8)  # type: ignore[attr-defined]
    if image.format == "JPEG2000":
        at = data.find(_CODESTREAM) + _SSIZ
        return at >= _SSIZ and at < len(data) and (data[at] & 0x7F) + 1 > 8
    return ";16" in str(how)  # PNG


def _opaque(image: Image) -> Image:
    """In mode L, RGB or CMYK; what is transparent shows white."""
    from PIL import Image as pillow

    mode = "L" if image.mode.startswith(_GREY) else "RGB"
    if image.has_transparency_data:
        white = pillow.new("RGBA", image.size, "white")
        return pillow.alpha_composite(white, image.convert("RGBA")).convert(mode)
    return image if image.mode in ("L", "RGB", "CMYK") else image.convert(mode)


def _in_srgb(image: Image, profile: bytes, where: str) -> Image:
    from PIL import ImageCms

    try:
        mode, transform = _transform(profile)
        if transform is None:
            return image
        if mode == "RGB" and image.mode == "L":  # an RGB profile also says what equal values of all three are
            image = image.convert("RGB")
        if image.mode != mode:
            raise ValueError(f"it is for {mode} and the image is {image.mode}")
        seen = ImageCms.applyTransform(image, transform)
        assert seen is not None  # not in place
        return seen.convert("L") if mode == "L" else seen
    except Exception as error:  # damaged profiles raise anything
        raise FedbenchError(
            f"{where} has a colour profile that cannot be applied ({error})",
            "convert its colours to sRGB, or take the profile out if it is wrong",
        ) from error


@lru_cache(maxsize=64)
def _transform(profile: bytes) -> tuple[str, ImageCmsTransform | None]:
    """The mode of the images that a profile is for, and the conversion to sRGB; None if it is sRGB."""
    from PIL import ImageCms

    given = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    space = given.profile.xcolor_space.strip()
    if space not in _SPACES:
        raise ValueError(f"its colour space is {space}")
    if "sRGB" in (given.profile.profile_description or ""):
        return _SPACES[space], None
    srgb = ImageCms.createProfile("sRGB")
    return _SPACES[space], ImageCms.buildTransform(given, srgb, _SPACES[space], "RGB")  # type: ignore[arg-type]


def _upright(image: Image, orientation: int) -> Image:
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(turns[orientation]) if orientation in turns else image
