"""The embedded stack: Redis, workers and beat as child processes of one supervisor for each data folder."""
