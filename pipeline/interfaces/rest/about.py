"""`/api/v1/about`: which program this is, what room it takes, and whether it is well. For administrators."""

from fastapi import APIRouter

from pipeline.interfaces.http.dependencies import InContext, seeing
from pipeline.standalone.doctor import About, about

router = APIRouter(prefix="/about", tags=["about"], dependencies=seeing)


@router.get("")
def show(context: InContext) -> About:
    """Show the version, the room that is taken and left, and the quick checks of `penstock doctor`."""
    return about(context)
