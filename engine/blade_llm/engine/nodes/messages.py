"""Messages between the leader and its followers: msgpack behind its length, over one TCP connection each."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import msgspec

from blade_llm.config import EngineConfig
from blade_llm.engine.messages import EngineFailure
from blade_llm.engine.nodes.identity import Identity

PROTOCOL: Final = 1
"""Of the link; another number cannot be understood."""
MAX_JOIN_BYTES: Final = 1 << 16
"""Of what a machine may send before it is let in."""
MAX_BYTES: Final = 1 << 20
"""Of every other message."""
NONCE_BYTES: Final = 16


class Challenge(msgspec.Struct, frozen=True, kw_only=True, tag="challenge"):
    """Leader → whoever connects."""

    protocol: int
    nonce: bytes
    """Random; the proof in the :class:`Join` covers it."""


class Join(msgspec.Struct, frozen=True, kw_only=True, tag="join"):
    """Follower → leader: let this machine in."""

    node_rank: int
    nnodes: int
    num_ranks: int
    """Of the engine."""
    identity: Identity
    nonce: bytes
    proof: bytes = b""
    """See :func:`proof_of`."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """Leader → follower: it does not belong here."""

    message: str
    again: bool = False
    """It may later."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """Leader → follower, when all machines are there: start your ranks."""

    config: EngineConfig
    """The leader's. Paths are each machine's own."""
    plans_port: int
    """Where steps come from, on the leader's host."""
    group_port: int
    """Where ranks meet for their collectives, on the leader's host."""
    session_key: str
    """Random. Secret key (CURVE, in Z85) of the sockets that ranks listen on: who does not know it is not let in."""
    device_type: str
    """Of rank 0: cpu or cuda."""
    proof: bytes = b""
    """See :func:`proof_of`."""


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """Both ways, twice a second: still there."""

    serving: bool = False
    """From the leader: all ranks are ready."""


class RankLost(msgspec.Struct, frozen=True, kw_only=True, tag="rank_lost"):
    """Follower → leader: one of its ranks has exited, or hangs."""

    rank: int
    failure: EngineFailure
    consequence: bool


class Ending(msgspec.Struct, frozen=True, kw_only=True, tag="ending"):
    """Both ways: this machine leaves, and with it the replica ends."""

    message: str


NodeMessage = Challenge | Join | Refused | Welcome | Beat | RankLost | Ending
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder[NodeMessage](NodeMessage)


def encode(message: NodeMessage) -> bytes:
    """The bytes of a message."""
    return _ENCODER.encode(message)


def decode(payload: bytes) -> NodeMessage:
    """Any message. Raises ``msgspec.DecodeError``."""
    message: NodeMessage = _DECODER.decode(payload)
    return message


def proof_of(message: Join | Welcome, nonce: bytes, token: bytes) -> bytes:
    """HMAC-SHA256, with the machines' common ``token``, of the other side's ``nonce`` and the message without proof."""
    plain = encode(msgspec.structs.replace(message, proof=b""))
    return hmac.digest(token, nonce + plain, hashlib.sha256)


def proven(message: Join | Welcome, nonce: bytes, token: bytes) -> bool:
    """Whether whoever sent this has the same token."""
    return hmac.compare_digest(message.proof, proof_of(message, nonce, token))
