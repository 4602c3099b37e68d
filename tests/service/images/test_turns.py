"""How many requests have their images decoded at a time."""

import asyncio

import pytest

from model.image_spans import ImageFormat
from service.images.images import REQUESTS, DecodedImage, Images
from service.images.source import Source


def test_a_few_requests_decode_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten requests of two images: no more than `REQUESTS` of them have begun and not ended, and all of them end."""
    open_requests: set[bytes] = set()
    most = 0

    async def decode(self: Images, source: Source, format: ImageFormat) -> DecodedImage:
        nonlocal most
        open_requests.add(source.data)
        most = max(most, len(open_requests))
        await asyncio.sleep(0)
        if source.param == "last":
            open_requests.remove(source.data)
        return DecodedImage(1, 1, source.param, source.data)

    async def serve() -> list[list[DecodedImage]]:
        images = Images(2, 100)
        names = [bytes([number]) for number in range(10)]
        pairs = [[Source(name, param, name) for param in ("first", "last")] for name in names]
        try:
            return await asyncio.gather(*(images.decode(pair, ImageFormat(1, 1, 10)) for pair in pairs))
        finally:
            await images.close()

    monkeypatch.setattr(Images, "_one", decode)
    found = asyncio.run(serve())
    assert [[image.pixels for image in pair] for pair in found] == [[bytes([number])] * 2 for number in range(10)]
    assert most == REQUESTS
