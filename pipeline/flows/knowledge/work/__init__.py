"""The units of work: an item's content is read and chunked, its batches are embedded, its chunks are published."""
