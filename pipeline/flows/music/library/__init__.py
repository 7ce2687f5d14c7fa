"""The libraries of songs: a Subsonic server or a folder of audio files, and their sync with the rows."""
