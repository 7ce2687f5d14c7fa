"""Tasks of child processes on models' replies, by name."""

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.reading.replies import forms
from pipeline.reading.replies.assembly import assemble
from pipeline.reading.replies.form import Form
from pipeline.reading.sandbox.limits import Task


def _reply(task: Task) -> dict[str, Any]:
    return vars(forms.parse(Form(**task["form"]), task["text"], tuple(task["size"])))


def _regions(task: Task) -> dict[str, Any]:
    regions = [forms.region(values) for values in task["regions"]]
    return vars(assemble(Form(scale=None), regions, tuple(task["size"])))


TASKS: Mapping[str, Callable[[Task], dict[str, Any]]] = {"regions": _regions, "reply": _reply}
