"""The states of a delivery: one event on its way to one endpoint."""

from enum import StrEnum

from pipeline.engine.states import Machine


class DeliveryStatus(StrEnum):
    """The states of a delivery."""

    PENDING = "pending"
    SENDING = "sending"
    DELIVERED = "delivered"
    FAILED = "failed"
    """A permanent error, or no attempts left."""


class DeliveryEvent(StrEnum):
    """The events of a delivery."""

    CLAIM = "claim"
    DONE = "done"
    WAIT = "wait"
    """A transient error; a retry follows when the row is due."""
    GIVE_BACK = "give_back"
    FAIL = "fail"
    REPLAY = "replay"
    """A person replays it."""


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
