"""Writes small images and webdataset shards to files, for tests of image data sets."""

import io
import tarfile

from PIL import Image


def picture(path, red=0, side=8):
    """Write an image of a uniform shade of red."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), (red % 256, 0, 0)).save(path)


def as_bytes(image, kind="PNG", **options):
    """The bytes of an image file."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def shard(path, samples):
    """Write a webdataset shard: samples are (key, {extension: bytes})."""
    with tarfile.open(path, "w") as archive:
        for key, files in samples:
            for extension, content in files.items():
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
