"""`/api/v1`: one module a subject. Each has a `router`; `ROUTERS` is the one list of them."""

from pipeline.interfaces.api.v1 import document_actions, document_results, documents

ROUTERS = (documents.router, document_actions.router, document_results.router)
