"""Answers that are read from an open file, in flat memory."""

import os
from collections.abc import Iterator
from typing import IO
from urllib.parse import quote

from fastapi.responses import StreamingResponse

_PIECE_BYTES = 256_000


def from_file(file: IO[bytes], media_type: str, filename: str = "") -> StreamingResponse:
    """Answer with the bytes of a file that is open at its beginning, and close it. `filename`: how a browser stores
    them; empty: it shows them."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    headers = {"Content-Length": str(size)}
    if filename:
        headers["Content-Disposition"] = f"attachment; filename*=utf-8''{quote(filename)}"
    return StreamingResponse(_pieces(file), media_type=media_type, headers=headers)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
