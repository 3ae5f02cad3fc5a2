"""Everything that can go wrong with a cluster and is said in a sentence, without a traceback."""

import subprocess

from e2e.cluster.assets import AssetError
from e2e.cluster.backends import NoCluster
from e2e.cluster.base import CommandFailed, Unsupported
from e2e.cluster.process import NotReady, ProcessDied
from e2e.cluster.requirements import MissingRequirement
from e2e.cluster.teardown import LeftBehind

ERRORS = (
    AssetError,
    CommandFailed,
    LeftBehind,
    MissingRequirement,
    NoCluster,
    NotReady,
    ProcessDied,
    RuntimeError,
    Unsupported,
    ValueError,
    subprocess.SubprocessError,
)
