"""Garbage collection by owner reference: deletes objects whose owners are gone."""

from __future__ import annotations

from blade_operator.cluster.local.store import Store
from blade_operator.model.objects import Ref


def collect(store: Store) -> None:
    """Delete every object all of whose owners are gone. Their own children follow on the next call."""
    uids = store.uids()
    for obj in store.everything():
        owners = obj["metadata"].get("ownerReferences") or []
        if owners and not any(owner["uid"] in uids for owner in owners):
            store.delete(Ref.of(obj))
