"""Pictures: opened within bounds, their text recognised, their layout seen by a model."""
