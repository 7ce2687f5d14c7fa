"""`/api/v1/about`: which program this is, what room it takes, and whether it is well. For administrators."""

import platform
from importlib.metadata import version
from typing import Literal

from fastapi import APIRouter
from pydantic import Field

from pipeline.interfaces import doctor
from pipeline.interfaces.http.dependencies import InContext
from pipeline.interfaces.http.shapes import Shape, example
from pipeline.interfaces.rest.live_settings import seeing
from pipeline.storage.context import Context
from pipeline.storage.footprint import footprint
from pipeline.storage.tables import database_bytes

router = APIRouter(prefix="/about", tags=["about"], dependencies=seeing)


class CheckShape(Shape):
    """A check of `penstock doctor`."""

    name: str
    result: Literal["ok", "warn", "fail"]
    found: str
    advice: str = Field(description="What to do about it; empty if it is well.")


class FootprintShape(Shape):
    """What the data folder takes, in bytes."""

    counted: int = Field(description="Of the files that could be looked at in half a second.")
    files: int
    is_whole: bool = Field(description="These are all files.")
    free: int = Field(description="On its disk.")
    disk: int


class AboutShape(Shape):
    """This installation."""

    model_config = example(
        version="0.1.0",
        python="3.12.4",
        data_dir="/srv/penstock",
        database_bytes=81920000,
        folder={"counted": 1200000000, "files": 4711, "is_whole": True, "free": 80000000000, "disk": 256000000000},
        checks=[{"name": "redis", "result": "ok", "found": "version 7.4.1", "advice": ""}],
    )
    version: str
    python: str
    data_dir: str
    database_bytes: int
    folder: FootprintShape
    checks: list[CheckShape] = Field(description="The quick ones: `penstock doctor` asks providers and nodes as well.")


def look(context: Context) -> AboutShape:
    """It, just now."""
    settings = context.settings
    return AboutShape(
        version=version("penstock"),
        python=platform.python_version(),
        data_dir=str(settings.data_dir),
        database_bytes=database_bytes(context.db),
        folder=FootprintShape.model_validate(footprint(settings.data_dir)),
        checks=[CheckShape.model_validate(one) for one in doctor.checks(settings, doctor.QUICK)],
    )


@router.get("")
def show(context: InContext) -> AboutShape:
    """Show the version, the room that is taken and left, and the quick checks of `penstock doctor`."""
    return look(context)
