"""The REST API: `penstock api`. FastAPI over the same services and queries as the command line."""
