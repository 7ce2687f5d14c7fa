"""Where songs come from: a Subsonic server or a folder of audio files, and what a listing does to the rows."""
