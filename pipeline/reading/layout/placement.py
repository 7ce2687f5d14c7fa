"""Pictures among the blocks of a page."""

from collections.abc import Sequence

from pipeline.reading.layout.model import Block, Picture


def with_pictures(blocks: Sequence[Block], pictures: Sequence[Picture]) -> list[Block]:
    """The blocks in their order, each picture before the first block of its column that stands below it."""
    found = list(blocks)
    for picture in pictures:
        found.insert(_place(found, picture), picture)
    return found


def _place(blocks: Sequence[Block], picture: Picture) -> int:
    left, top, right, _ = picture.box
    above = None
    for index, block in enumerate(blocks):
        if block.box[2] < left or block.box[0] > right:
            continue
        if block.box[1] >= top:
            return index
        above = index
    return len(blocks) if above is None else above + 1
