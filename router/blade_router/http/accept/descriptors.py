"""File descriptors of the process: how many there are, and the errors that say they (or ports, or buffers) ran out."""

import errno
import logging
import os
import resource

logger = logging.getLogger("blade_router.http")

EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM))
"""Errors of accepting and connecting that are about this process or its machine, never about the other side."""
WANTED = 1 << 20
"""Descriptors beyond which more are of no use here; some container runtimes allow a thousand times as many."""
RESERVED = 96
"""Descriptors that are not for clients and their requests: the router's own, its queries, connections in reserve."""
MIN_CONNECTIONS = 8


def raise_descriptor_limit() -> int:
    """Raise this process's soft limit of open files to the hard one, as far as that is of use; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return descriptor_limit()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:  # a sandbox may forbid it; the limit that is in effect counts
        logger.warning("the limit of %d open files cannot be raised: %s", soft, error)
    return descriptor_limit()


def descriptor_limit() -> int:
    """The soft limit of open files that is in effect, at most ``WANTED``."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else min(soft, WANTED)


def out_of_descriptors() -> bool:
    """Whether no file can be opened at the moment."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in EXHAUSTED
    return False


def connections_for(descriptors: int) -> int:
    """Client connections that a process may have with so many descriptors: each may need one to an engine as well."""
    return max(MIN_CONNECTIONS, (descriptors - RESERVED) // 2)
