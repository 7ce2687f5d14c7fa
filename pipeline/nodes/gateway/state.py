"""The shared state as one instance uses it."""

from dataclasses import dataclass

from pipeline.nodes.settings import GatewaySettings
from pipeline.nodes.state.inbox import Inbox
from pipeline.nodes.state.instances import Instances
from pipeline.nodes.state.jobs import Jobs
from pipeline.nodes.state.queue import Waiting
from pipeline.nodes.state.requests import Requests
from pipeline.nodes.state.slots import Slots
from pipeline.nodes.state.snapshots import Snapshots
from pipeline.nodes.state.store import Store


@dataclass(frozen=True)
class SharedState:
    """One of each over one store."""

    store: Store
    jobs: Jobs
    requests: Requests
    slots: Slots
    instances: Instances
    inbox: Inbox
    snapshots: Snapshots
    waiting: Waiting

    @classmethod
    def over(cls, settings: GatewaySettings, own_url: str, instance_id: str) -> "SharedState":
        """`own_url`: Penstock's own Redis, which is used where the gateway has none."""
        store = Store(settings, own_url)
        return cls(
            store,
            Jobs(store),
            Requests(store),
            Slots(store),
            Instances(store),
            Inbox(store, instance_id),
            Snapshots(store),
            Waiting(store),
        )

    async def now_ms(self) -> int:
        """The time by Redis."""
        return await self.store.now_ms()
