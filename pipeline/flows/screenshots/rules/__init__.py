"""Pure rules of screenshots: prompts, replies, duplicates, batches, nodes, and segments without models."""
