"""The console in this process, over a real database and a real Redis; no workers."""

from tests.integration.interfaces.api.conftest import api, connect

__all__ = ["api", "connect"]
