"""The music flow: songs become descriptions, tags and vectors, batch by batch, within what providers allow."""
