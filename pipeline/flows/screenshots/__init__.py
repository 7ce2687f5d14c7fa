"""The screenshots flow: frames become segments, segments become nodes of a graph that can be searched. Source 000."""
