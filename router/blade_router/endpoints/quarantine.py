"""Quarantine of requests that kill engines.

A request whose engine loses the connection may have suffered a crash or caused it, and nobody can tell from one
crash. So it is tried again, once: on two engines in a row that are lost before they send anything of its response it is
*convicted*. It is refused, and so is the same request (path, body and key) for a while: a client that repeats it must
not take down one engine after another. What is served after all is acquitted, and the engine that was lost is to blame.

Requests that crash with a poisonous one are spared where they differ from it. A stream that went on after its first
engine was lost may lose more. One that lost its second engine before that went on is convicted only if none is more
suspect among those that were lost at the same moment: the poisonous one is, once it has been lost twice without a byte.

Of equal requests that are suspected one at a time is on trial; the others wait for its verdict.
"""

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from blade_protocol.openai import ENGINE_DEAD
from blade_router.endpoints.confinement import Confinement
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_health import EndpointHealth
from blade_router.endpoints.request_digest import Request, digest, digest_async
from blade_router.http.client import Client
from blade_router.http.errors import Refused
from blade_router.http.upstream.errors import ConnectFailed, ConnectionLost, EngineShutdown, UpstreamError

logger = logging.getLogger("blade_router.endpoints")

MAX_STRIKES = 2
"""Engines that may be lost with a request before they send anything of its response."""
MAX_LOSSES = 4
"""Engines that may be lost with one request altogether."""
QUARANTINE_SECONDS = 60.0
MAX_QUARANTINE_SECONDS = 960.0
"""Seconds of the first and of the longest quarantine: each further conviction doubles it."""
CROWD_SECONDS = 5.0
"""The same where others were lost with it that are as suspect: most of them are innocent."""
SUSPECT_SECONDS = 60.0
"""How long a request stays suspected that lost one engine and was not sent again."""
RETENTION_SECONDS = 900.0
"""How long after its quarantine a request may be sent to one engine only."""
TURN_SECONDS = 30.0
"""How long a request waits for the verdict on an equal one."""
CRASH_SECONDS = 0.25
"""Requests lost on an engine within that time were lost in the same crash."""
SETTLE_SECONDS = 0.05
"""After which all that a crash takes along have noticed."""
MAX_CASES = 1024
"""Requests that are suspected or in quarantine; beyond them the oldest is forgotten."""


def is_loss(error: UpstreamError) -> bool:
    """The engine may have died of the request."""
    return isinstance(error, ConnectionLost | EngineShutdown) or (isinstance(error, ConnectFailed) and error.sent)


_ENGINE_DEAD = b'"code":"%b"' % ENGINE_DEAD.encode()


def is_engine_dead(status: int, body: bytes) -> bool:
    """The engine process died with the request in it, as what is left of the server reports."""
    return status == 503 and _ENGINE_DEAD in body


class Case:
    """What is known of all requests with one digest."""

    __slots__ = (
        "closed",
        "convictions",
        "digest",
        "expires",
        "in_stream",
        "on_trial",
        "size",
        "strikes_on",
        "trials",
        "until",
    )

    def __init__(self, digest: int, size: int) -> None:
        self.digest = digest
        self.size = size
        self.strikes_on: set[str] = set()
        """Names of the endpoints that were lost before they sent anything of a response."""
        self.in_stream = False
        """Others were lost in the middle of one: only a complete response acquits."""
        self.until = 0.0
        """End of the quarantine (monotonic); 0: none yet."""
        self.expires = 0.0
        self.convictions = 0
        self.on_trial: Trial | None = None
        self.trials: set[Trial] = set()
        """Those that are not over: until then it does not expire."""
        self.closed = False
        """It is acquitted, or forgotten."""


class Crash:
    """Requests that were lost on one engine at the same moment."""

    __slots__ = ("at", "keys", "strikes")

    def __init__(self, at: float) -> None:
        self.at = at
        self.strikes: Counter[int] = Counter()
        """Strikes of a request → how many have so many."""
        self.keys: dict[int, set[str]] = {}
        """Strikes of a request → whose they are."""

    def add(self, strikes: int, key: str) -> None:
        """A request of that key with so many strikes was lost in it."""
        self.strikes[strikes] += 1
        self.keys.setdefault(strikes, set()).add(key)


class Quarantine:
    """The suspected requests of this process, and those in quarantine.

    Args:
        publish: notifies the other workers of a conviction: digest, size of the body, seconds.
        clock: monotonic, in seconds.
        confinement: of the keys whose requests are convicted.
    """

    def __init__(
        self,
        publish: Callable[[int, int, float], None] = lambda digest, size, seconds: None,
        clock: Callable[[], float] = time.monotonic,
        confinement: Confinement | None = None,
    ) -> None:
        self.publish = publish
        self.confinement = confinement or Confinement(clock)
        self._clock = clock
        self._cases: OrderedDict[int, Case] = OrderedDict()
        self._sizes: Counter[int] = Counter()
        """Sizes of the suspected bodies: others are not hashed."""
        self._crashes: dict[Endpoint, Crash] = {}
        self._verdicts: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._cases)

    def enter(self, request: Request, key: str) -> "Trial | None":
        """A request has been admitted: its trial, where it is suspected.

        Raises:
            Refused: 503, it is in quarantine.
        """
        if len(request.body) not in self._sizes:
            return None
        case = self._cases.get(digest(request, key))
        if case is None:
            return None
        now = self._clock()
        if now >= case.expires and not case.trials:
            self._close(case)
            return None
        self._check(case, now)
        trial = Trial(self, request, key)
        trial.case = case
        case.trials.add(trial)
        trial.strikes = 1
        return trial

    def served(self, request: Request, key: str) -> None:
        """A request that was sent before an equal one lost its engine has been served: acquit that one."""
        if len(request.body) in self._sizes:
            case = self._cases.get(digest(request, key))
            if case is not None:
                self._close(case)

    def convict(self, number: int, size: int, seconds: float) -> None:
        """Quarantine a request for so long."""
        case = self._cases.get(number) or self._open(number, size)
        case.until = max(case.until, self._clock() + seconds)
        case.expires = case.until + RETENTION_SECONDS
        case.on_trial = None
        self._cases.move_to_end(number)
        self._notify()

    # called by ``Trial``

    def case_of(self, trial: "Trial", number: int) -> Case:
        """The case of a request that has just lost an engine. ``number``: its digest."""
        case = trial.case
        if case is None or case.closed:
            case = self._cases.get(number) or self._open(number, len(trial.request.body))
            trial.case = case
            case.trials.add(trial)
        case.expires = max(case.expires, self._clock() + SUSPECT_SECONDS)
        self._cases.move_to_end(case.digest)
        return case

    def crash_of(self, endpoint: Endpoint) -> Crash:
        """The crash in which a request has just been lost."""
        now = self._clock()
        crash = self._crashes.get(endpoint)
        if crash is None or now - crash.at > CRASH_SECONDS:
            self._crashes = {each: other for each, other in self._crashes.items() if now - other.at <= CRASH_SECONDS}
            crash = self._crashes[endpoint] = Crash(now)
        return crash

    def acquit(self, case: Case) -> None:
        """The request was served."""
        if not case.closed:
            self._close(case)

    def release(self, trial: "Trial") -> None:
        """Let an equal request be tried."""
        case = trial.case
        if case is not None and case.on_trial is trial:
            case.on_trial = None
            self._notify()

    async def turn(self, trial: "Trial", client: Client) -> None:
        """Wait until no equal request is on trial. Afterwards this one is, if it is still suspected.

        Raises:
            Refused: 503, it is in quarantine, or has waited for too long.
            ClientGone: the client left.
        """
        deadline = self._clock() + TURN_SECONDS
        while (case := trial.case) is not None and case.on_trial is not trial:
            if case.closed:
                trial.acquitted()
                return
            self._check(case, self._clock())
            if case.on_trial is None:
                case.on_trial = trial
                return
            await self._next_verdict(client, deadline - self._clock())

    # internal

    def _check(self, case: Case, now: float) -> None:
        if now < case.until:
            raise refusal(case.until - now)

    def _open(self, number: int, size: int) -> Case:
        case = self._cases[number] = Case(number, size)
        self._sizes[size] += 1
        if len(self._cases) > MAX_CASES:
            self._close(next(iter(self._cases.values())))
        return case

    def _close(self, case: Case) -> None:
        case.closed = True
        del self._cases[case.digest]
        self._sizes[case.size] -= 1
        if not self._sizes[case.size]:
            del self._sizes[case.size]
        self._notify()

    def _notify(self) -> None:
        for each in self._verdicts:
            if not each.done():
                each.set_result(None)
        self._verdicts.clear()

    async def _next_verdict(self, client: Client, seconds: float) -> None:
        waiter = _Waiter()
        client.attach(waiter)
        self._verdicts.add(waiter.future)
        try:
            async with asyncio.timeout(seconds):
                await waiter.future
        except TimeoutError:
            message = "the same request has just lost its engine and is tried on another one; try again shortly"
            raise Refused(503, message, code="suspected", retry_after=5) from None
        finally:
            self._verdicts.discard(waiter.future)
            client.detach()


class _Waiter:
    """Waits for a verdict, unless the client leaves."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def abort(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Trial:
    """One request that has lost an engine, or equals one that has. To be closed when it is over."""

    __slots__ = ("_blamed", "_quarantine", "_tried_on", "_unproven", "case", "key", "losses", "request", "strikes")

    def __init__(self, quarantine: Quarantine, request: Request, key: str) -> None:
        self.request = request
        self.key = key
        self.case: Case | None = None
        """None: it is not suspected (any more)."""
        self.losses = 0
        """Engines that were lost with it."""
        self.strikes = 0
        """Those that were lost before they sent anything of its response."""
        self._unproven = 0
        """Engines that were lost with it since an engine served it, or an equal one."""
        self._quarantine = quarantine
        self._tried_on: Endpoint | None = None
        """The endpoint it was sent to while it was suspected."""
        self._blamed: list[EndpointHealth] = []
        """Endpoints that were lost, if it is not this request's fault."""

    async def lost(self, endpoint: Endpoint, *, progressed: bool) -> None:
        """An engine was lost with it. Nothing is booked on the endpoint yet, but its health is checked.

        Args:
            progressed: it had sent a part of the response.

        Raises:
            Refused: 502, it is convicted.
        """
        quarantine = self._quarantine
        self._leave()
        endpoint.health.check_now()
        case = self.case
        if case is not None and case.closed:
            self.acquitted()
            case = None
        number = case.digest if case is not None else await digest_async(self.request, self.key)
        self._blamed.append(endpoint.health)
        self.losses += 1
        self._unproven += 1
        case = quarantine.case_of(self, number)
        quarantine.release(self)
        if progressed:
            case.in_stream = True
        else:
            self.strikes += 1
            if case.strikes_on - {endpoint.name} or quarantine.confinement.on_probation(self.key):
                self.strikes = max(self.strikes, MAX_STRIKES)  # an equal one was lost elsewhere, or one of its key
            case.strikes_on.add(endpoint.name)
        crash = quarantine.crash_of(endpoint)
        crash.add(self.strikes, self.key)
        if self.losses < MAX_LOSSES and self.strikes < MAX_STRIKES and (progressed or self._unproven < 2):
            return
        if case.on_trial is None:
            case.on_trial = self  # equal ones wait
        await asyncio.sleep(SETTLE_SECONDS)
        if case.closed or (self.losses < MAX_LOSSES and self.strikes < max(crash.strikes)):
            return  # an equal one was served, or another one is more suspect
        self._blamed.clear()
        crowded = crash.strikes[self.strikes] > 1
        seconds = CROWD_SECONDS if crowded else QUARANTINE_SECONDS * 2.0 ** min(case.convictions, 16)
        seconds = min(seconds, MAX_QUARANTINE_SECONDS)
        case.convictions += not crowded
        quarantine.convict(case.digest, case.size, seconds)
        quarantine.publish(case.digest, case.size, seconds)
        several = len(case.strikes_on) > 1 or quarantine.confinement.on_probation(self.key)
        if several and len(crash.keys[self.strikes]) == 1:
            quarantine.confinement.convicted(self.key, endpoint)
        logger.warning(
            "a request to %s of key %r lost engine %s, as one before: it is refused for %g s",
            *(self.request.path, self.key, endpoint.name, seconds),
        )
        message = (
            f"the engines were lost that worked on this request ({max(self.losses, self.strikes)} of them); it is sent "
            f"to no other one, and refused for {seconds:g} s"
        )
        raise Refused(502, message, code="engine_lost")

    @property
    def waits(self) -> bool:
        """It is suspected, and not on trial yet: ``turn`` first."""
        return self.case is not None and self.case.on_trial is not self

    async def turn(self, client: Client) -> None:
        """Wait for the verdict on an equal request; see :meth:`Quarantine.turn`."""
        await self._quarantine.turn(self, client)

    def sent_to(self, endpoint: Endpoint) -> None:
        """It is about to be sent there: others had better not join it, while it is suspected."""
        self._leave()
        if self.strikes:
            self._tried_on = endpoint
            self._quarantine.confinement.try_on(endpoint, self.key)

    def _leave(self) -> None:
        endpoint, self._tried_on = self._tried_on, None
        if endpoint is not None:
            self._quarantine.confinement.tried(endpoint, self.key)

    def began(self) -> None:
        """Its response has begun, and is not the error of an engine."""
        self._leave()
        if self.case is None or not self.case.in_stream:
            self.served()

    def served(self) -> None:
        """An engine has gone beyond the point where others were lost: it was their own fault."""
        if self.case is not None:
            self._quarantine.acquit(self.case)
        self.acquitted()

    def acquitted(self) -> None:
        """It, or an equal request, was served: what it lost was lost by the endpoints' own fault."""
        self._leave()
        self.case = None
        self.strikes = self._unproven = 0
        self.blame()

    def blame(self) -> None:
        """Book the losses on the endpoints."""
        blamed, self._blamed = self._blamed, []
        for health in blamed:
            health.record_failure("it lost the connection")

    def close(self) -> None:
        """The request is over."""
        self._leave()
        self._quarantine.release(self)
        if self.case is not None:
            self.case.trials.discard(self)


def refusal(seconds: float) -> Refused:
    """The response to a request in quarantine."""
    message = "engines were lost with this request, time and again; it is refused for a while. Change it, or try later"
    return Refused(503, message, code="quarantined", retry_after=max(1, round(seconds)))
