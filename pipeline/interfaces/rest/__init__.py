"""`/api/v1`: one module for each subject. `ROUTERS` lists their routers."""

from pipeline.interfaces.rest import (
    about,
    calls,
    document_actions,
    document_results,
    documents,
    events,
    inference_nodes,
    keys,
    knowledge_bases,
    knowledge_intake,
    knowledge_items,
    live_settings,
    music,
    queues,
    screenshot_work,
    screenshots,
    status,
    webhooks,
)

AT_ROOT = (knowledge_bases.router, knowledge_items.router, knowledge_intake.router)
"""Also served without the prefix, at the addresses of docs/sources/knowledge.md#endpoints."""
ROUTERS = (
    documents.router,
    document_actions.router,
    document_results.router,
    screenshot_work.router,
    screenshots.router,
    music.router,
    queues.queues,
    queues.breakers,
    live_settings.router,
    calls.router,
    status.router,
    about.router,
    events.router,
    webhooks.router,
    keys.router,
    keys.own,
    inference_nodes.router,
    *AT_ROOT,
)
