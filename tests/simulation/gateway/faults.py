"""Faults of gateways."""

from dataclasses import dataclass

from tests.simulation.world import Faults


@dataclass(frozen=True)
class GatewayFaults(Faults):
    """The faults of Redis and processes in `Faults`, and those of gateways, nodes and sessions."""

    answer_lost: float = 0.0
    """Redis executes a command, and its answer is lost."""
    repeat_late: float = 0.0
    """Redis executes a repeated command long after its sender has continued."""
    freeze_every_s: float = 0.0
    """A whole instance stalls (SIGSTOP)."""
    kill_node_every_s: float = 0.0
    rogue_every_s: float = 0.0
    """A process reports wrong attempts and nodes, and bypasses the checks of the instances."""
    cancel_every_s: float = 0.0
    again_every_s: float = 0.0
    """A session repeats its unanswered requests."""
