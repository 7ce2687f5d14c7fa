"""What goes wrong with gateways."""

from dataclasses import dataclass

from tests.simulation.world import Faults


@dataclass(frozen=True)
class GatewayFaults(Faults):
    """Those of `Faults` that concern Redis and processes, and others."""

    answer_lost: float = 0.0
    """A command was carried out, and its sender does not learn that."""
    repeat_late: float = 0.0
    """A second sending of a command is carried out when its sender has long gone on."""
    freeze_every_s: float = 0.0
    """An instance is held up as a whole (SIGSTOP)."""
    kill_node_every_s: float = 0.0
    rogue_every_s: float = 0.0
    """A process speaks of attempts and nodes that jobs are not at, past everything that an instance checks."""
    cancel_every_s: float = 0.0
    again_every_s: float = 0.0
    """A session asks again for what it waits for."""
