"""`penstock compare`: a few pages of a file by several providers, side by side."""
