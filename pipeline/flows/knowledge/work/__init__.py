"""The units of work: reading and chunking an item, embedding its batches, and publishing its chunks."""
