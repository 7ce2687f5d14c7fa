"""`/api/v1/about`: version, storage and health. For administrators."""

from fastapi import APIRouter

from pipeline.interfaces.http.dependencies import InContext, seeing
from pipeline.standalone.doctor import About, about

router = APIRouter(prefix="/about", tags=["about"], dependencies=seeing)


@router.get("")
def show(context: InContext) -> About:
    """Show the version, used and free storage, and the quick checks of `penstock doctor`."""
    return about(context)
