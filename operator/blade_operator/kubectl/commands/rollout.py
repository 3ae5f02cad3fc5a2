"""``rollout``: how a change goes, its history, pausing and resuming it, going back, and replacing every engine."""

from __future__ import annotations

import argparse

from blade_operator.cli.rollout import execute
from blade_operator.kubectl.places.choice import open_place


def run(options: argparse.Namespace) -> int:
    """Execute one of the commands on a service."""
    place = open_place(options)
    return execute(place.client(), options.namespace or place.namespace, options)
