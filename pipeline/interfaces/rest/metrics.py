"""`GET /metrics`, for Prometheus; `pipeline.interfaces.metrics` collects the figures."""

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from pydantic import StringConstraints

from pipeline.interfaces.http.dependencies import reader
from pipeline.interfaces.http.fields import CLEAN
from pipeline.interfaces.metrics.exposition import Exposition

Accept = Annotated[str, StringConstraints(max_length=1000), CLEAN]
router = APIRouter(tags=["metrics"], dependencies=reader)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "All metrics."}},
)
def metrics(request: Request, accept: Annotated[Accept, Header()] = "") -> Response:
    """Answer with the metrics of docs/reference/metrics.md: work by state, gates, providers, the API itself."""
    exposition: Exposition = request.app.state.metrics
    content, content_type = exposition.scrape(accept)
    return Response(content, headers={"Content-Type": content_type})
