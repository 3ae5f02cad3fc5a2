"""The refusal of a request that no engine could answer, with the reason."""

from blade_router.admission import Admission
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.errors import Refused
from blade_router.http.upstream.errors import EXHAUSTED_REASON
from blade_router.proxy.retry_state import RetryState


def unavailable(endpoints: EndpointSet, retries: RetryState, admission: Admission, adapter: str | None) -> Refused:
    """The refusal of a request for which no engine is left. ``adapter``: that it names, if any."""
    tried = retries.tried
    if endpoints.lacks_adapter(adapter, admission.service):
        message = f"adapter `{adapter}` is declared, and no engine has loaded it; try again shortly"
        return Refused(503, message, code="adapter_not_loaded", retry_after=2)
    confinement = endpoints.confinement
    if confinement.is_confined(admission.key_name) and confinement.part(endpoints.of_service(admission.service)):
        message = "engines were lost with requests of this API key: for a while few of them serve it, and none is ready"
        return Refused(503, message, code="key_confined", retry_after=5)
    if not endpoints.all:
        message, code = "no engine is registered with this router yet; try again shortly", "no_endpoint"
    elif not tried:
        message = "no engine of this service is registered, or all of them are draining; try again shortly"
        code = "no_endpoint"
    elif retries.reason == EXHAUSTED_REASON:
        message = "the router has no descriptor or port left to reach an engine; try again shortly"
        code = "overloaded"
    else:
        message = f"no engine could answer ({len(tried)} tried, last failure: {retries.reason}); try again shortly"
        code = "engines_unavailable"
    return Refused(503, message, code=code, retry_after=1)
