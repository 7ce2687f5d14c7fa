"""Tasks of child processes on pictures of screens and pages, by name."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.reading.ocr.rendition import Rendition
from pipeline.reading.sandbox.limits import Task


def _frame(task: Task) -> dict[str, Any]:
    from pipeline.reading.ocr.fingerprint import read_frame  # noqa: PLC0415  # only frames need it

    frame = read_frame(task.path.read_bytes())
    sketch = b64encode(frame.sketch.tobytes()).decode()
    width, height = frame.sketch.size
    return {"phash": frame.phash, "format": frame.format, "sketch": sketch, "width": width, "height": height}


def _jpeg(task: Task) -> dict[str, Any]:
    from pipeline.reading.ocr.fingerprint import as_jpeg, load_image  # noqa: PLC0415  # as above

    return {"jpeg": b64encode(as_jpeg(load_image(task.path), task["side"])).decode()}


def _lines(task: Task) -> dict[str, Any]:
    from pipeline.reading.ocr import recognition  # noqa: PLC0415  # as above
    from pipeline.reading.ocr.fingerprint import load_image  # noqa: PLC0415  # as above

    image = load_image(task.path)
    across, down = image.size
    lines = recognition.recognise(image, task.limits.ocr_threads)
    shares = [
        (line.text, line.left / across, line.top / down, line.right / across, line.bottom / down) for line in lines
    ]
    return {"lines": shares}


def _page_regions(task: Task) -> dict[str, Any]:
    from pipeline.reading.ocr import crops  # noqa: PLC0415  # only two-step models need it

    return {"regions": crops.regions(task.path, task.limits.ocr_threads)}


def _page_middle(task: Task) -> dict[str, Any]:
    from pipeline.reading.ocr import crops  # noqa: PLC0415  # as above

    return {"row": crops.middle(task.path)}


def _page_parts(task: Task) -> dict[str, Any]:
    from pipeline.reading.ocr import crops  # noqa: PLC0415  # as above

    rendition = Rendition.of(task["rendition"])
    return {"parts": crops.save_parts(task.path, task["boxes"], rendition, Path(task["folder"]))}


TASKS: Mapping[str, Callable[[Task], dict[str, Any]]] = {
    "frame": _frame,
    "frame_jpeg": _jpeg,
    "frame_lines": _lines,
    "page_middle": _page_middle,
    "page_parts": _page_parts,
    "page_regions": _page_regions,
}
