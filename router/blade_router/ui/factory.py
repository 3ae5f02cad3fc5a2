"""The web UI made of a router's parts."""

import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from blade_router.admission.controller import AdmissionController
from blade_router.arguments import Options
from blade_router.observability.metrics import Metrics
from blade_router.observability.recent_requests import RecentRequests
from blade_router.proxy.proxy import Proxy
from blade_router.ui.engine_rates import EngineRates
from blade_router.ui.parts import OwnPart
from blade_router.ui.sampler import Sampler
from blade_router.ui.service_report import ServiceReport
from blade_router.ui.siblings import SiblingParts, Siblings
from blade_router.ui.static_files import FOLDER, StaticFiles
from blade_router.ui.stream import About, Stream
from blade_router.ui.web_ui import WebUi


def make_web_ui(
    options: Options,
    proxy: Proxy,
    metrics: Metrics,
    admission: AdmissionController,
    workers: Siblings | None,
    *,
    replicas: Callable[[], int],
    is_draining: Callable[[], bool],
) -> WebUi | None:
    """The web UI, for which the proxy records its requests from now on; None where the options have it off.

    Args:
        workers: the other processes of this router; None: there are none.
        replicas: how many routers there are.
        is_draining: whether this one is about to stop.
    """
    if not options.ui:
        return None
    recent = proxy.recent = RecentRequests()
    sampler, rates, report = Sampler(metrics, recent), EngineRates(), ServiceReport()
    own = OwnPart(metrics.endpoints, recent, sampler)
    about = About(
        version=_version(),
        started=time.time(),
        workers=options.workers,
        policy=lambda: proxy.policy.name,
        replicas=replicas,
        is_draining=is_draining,
    )
    siblings = SiblingParts(workers, own, report, time.time) if workers is not None else None
    stream = Stream(about, metrics.endpoints, admission, own, rates, report, siblings)
    return WebUi(StaticFiles(options.ui_files or FOLDER), stream, report, sampler, rates, metrics.endpoints, siblings)


def _version() -> str:
    try:
        return version("bladellm")
    except PackageNotFoundError:
        return "unknown"
