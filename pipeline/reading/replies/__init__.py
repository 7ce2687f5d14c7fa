"""Read the raw replies of document models: Markdown, blocks with boxes, and a judgement of the reply."""
