"""The Python API of the screenshots flow.

>>> from tasks import screenshots
>>> screenshots.ingest("desk.png", source="screen:0", app="Firefox", window_title="Invoices")
>>> [hit.node.title for hit in screenshots.search("invoice from March").hits]

Every function returns plain typed objects. All raise `UserError` with a message for people.
"""

from pipeline.engine.errors import NoWorkerWarning, UserError
from pipeline.engine.logs import configure_as_library
from pipeline.flows.screenshots.deletion import Forgotten
from pipeline.flows.screenshots.frames.intake import Frame
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.flows.screenshots.views import (
    BatchView,
    DeadLetter,
    Exclusions,
    Extent,
    Hour,
    NodeDetail,
    NodeView,
    RejectionView,
    ScreenshotView,
    SearchResult,
    SourceView,
    Status,
    TextLine,
)
from pipeline.operations.screenshots import (
    Intake,
    batch,
    batch_now,
    batches,
    dead_letters,
    exclude,
    exclusions,
    extent,
    follow,
    forget,
    ingest,
    ingest_upload,
    leave_out,
    nodes_of,
    picture,
    rejections,
    replay,
    screenshot,
    screenshots,
    screenshots_of,
    search,
    set_active,
    settled,
    show,
    sources,
    states,
    status,
    text_lines,
    time_zone,
    timeline,
)

__all__ = [
    "BatchView",
    "DeadLetter",
    "Exclusions",
    "Extent",
    "Forgotten",
    "Frame",
    "Hour",
    "Intake",
    "NoWorkerWarning",
    "NodeDetail",
    "NodeView",
    "RejectionView",
    "ScreenshotView",
    "SearchResult",
    "SourceView",
    "Status",
    "TextLine",
    "UserError",
    "WorkStatus",
    "batch",
    "batch_now",
    "batches",
    "dead_letters",
    "exclude",
    "exclusions",
    "extent",
    "follow",
    "forget",
    "ingest",
    "ingest_upload",
    "leave_out",
    "nodes_of",
    "picture",
    "rejections",
    "replay",
    "screenshot",
    "screenshots",
    "screenshots_of",
    "search",
    "set_active",
    "settled",
    "show",
    "sources",
    "states",
    "status",
    "text_lines",
    "time_zone",
    "timeline",
]

configure_as_library()
