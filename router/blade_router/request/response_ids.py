"""Which engine keeps a response: its id begins with the tag of the endpoint that made it.

The router sends the tag with the request, and the engine puts it into the id. So no router has to remember anything:
each one finds the endpoint again, also after a restart, as long as the endpoint has its name.
"""

import hashlib
import re
from typing import Final

from blade_protocol import paths

BELOW_RESPONSES: Final = paths.RESPONSES + "/"
_TAGGED: Final = re.compile(r"resp_([0-9a-f]{8})_[0-9a-f]{32}")


def tag_in(response_id: str) -> str:
    """The tag of the endpoint that made a response; empty where the id has none."""
    found = _TAGGED.fullmatch(response_id)
    return found[1] if found is not None else ""


def caller_of(key_name: str) -> str:
    """How engines know the holder of an API key, who may come back to a response; empty without a key."""
    return hashlib.sha256(b"caller " + key_name.encode()).hexdigest()[:32] if key_name else ""


def response_of(path: str, previous: str | None) -> str:
    """The id of the response that a request is about: by its path, or as the one that it goes on from."""
    if path.startswith(BELOW_RESPONSES):
        return path[len(BELOW_RESPONSES) :].partition("/")[0]
    return previous or "" if path == paths.RESPONSES else ""
