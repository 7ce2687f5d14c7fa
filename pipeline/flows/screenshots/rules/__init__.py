"""What models are asked about frames, what they answer, and what is done without them: plain functions."""
