"""The batches of one process, numbered so that its siblings see what they were not told."""

from blade_router.policies.replica_sync import messages
from blade_router.policies.sync_log import SyncLog


class Outgoing:
    """Makes batches of a log's events.

    Where events were lost before they could be sent, the sequence skips a number: what is open at siblings may have
    ended.

    Args:
        sender: this process's id, another one after each start.
        router: the same for all workers of one router.
    """

    def __init__(self, log: SyncLog, sender: str, router: str) -> None:
        self.sent = 0
        """Events."""
        self.dropped = 0
        """Events that found no room in a batch."""
        self.sequence = 0
        self._log = log
        self._sender = sender
        self._router = router

    def batch(self, now: float) -> messages.Batch:
        """The next one, with all events there are room for."""
        events, lost = self._log.take()
        packed, left_out = messages.pack(events, now)
        self.dropped += left_out
        self.sent += len(packed)
        self.sequence += 2 if lost or left_out else 1
        return messages.Batch(messages.VERSION, self._sender, self._router, messages.SALT, self.sequence, packed)
