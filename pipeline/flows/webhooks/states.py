"""The states of a delivery: one event on its way to one endpoint."""

from enum import StrEnum

from pipeline.engine.states import Machine


class DeliveryStatus(StrEnum):
    """How a delivery stands."""

    PENDING = "pending"
    SENDING = "sending"
    DELIVERED = "delivered"
    FAILED = "failed"
    """Refused for good, or no attempts are left."""


class DeliveryEvent(StrEnum):
    """What can happen to a delivery."""

    CLAIM = "claim"
    DONE = "done"
    WAIT = "wait"
    """The endpoint did not take it: it is tried again when the row is due."""
    GIVE_BACK = "give_back"
    FAIL = "fail"
    REPLAY = "replay"
    """Somebody wants it sent again."""


_D, _E = DeliveryStatus, DeliveryEvent

DELIVERY = Machine(
    "delivery",
    {
        (_D.PENDING, _E.CLAIM): _D.SENDING,
        (_D.SENDING, _E.DONE): _D.DELIVERED,
        (_D.SENDING, _E.WAIT): _D.PENDING,
        (_D.SENDING, _E.GIVE_BACK): _D.PENDING,
        (_D.SENDING, _E.FAIL): _D.FAILED,
        **{(state, _E.REPLAY): _D.PENDING for state in (_D.PENDING, _D.DELIVERED, _D.FAILED)},
    },
)

ENDED = (_D.DELIVERED, _D.FAILED)
