"""What was understood: nodes, their merges, their vectors, their full text, and finding them."""
