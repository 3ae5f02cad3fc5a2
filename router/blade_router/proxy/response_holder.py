"""Requests about a response go to the engine that keeps it: there is no other copy."""

from collections.abc import Sequence

from blade_protocol import headers as names
from blade_protocol import paths
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.errors import Refused
from blade_router.request.request import ClientRequest
from blade_router.request.response_ids import BELOW_RESPONSES, GOING_ON, caller_of, tag_in

_TAG = names.RESPONSE_TAG.encode()
_CALLER = names.CALLER.encode()


def is_about_responses(path: str) -> bool:
    """Engines make, go on from, read or delete a response there."""
    return path == paths.RESPONSES or path.startswith(BELOW_RESPONSES)


def tag_lines(endpoint: Endpoint, key_name: str) -> bytes:
    """The header lines that let an engine tag the responses it keeps, and keep those of API keys apart."""
    found = b"%b: %b\r\n" % (_TAG, endpoint.response_tag.encode())
    if key_name:
        found += b"%b: %b\r\n" % (_CALLER, caller_of(key_name).encode())
    return found


def has_holder(request: ClientRequest) -> bool:
    """One engine keeps what the request is about: when that has answered, no other one could do better."""
    return bool(tag_in(request.response_id))


def holders(
    candidates: Sequence[Endpoint], request: ClientRequest, endpoints: EndpointSet, service: str
) -> Sequence[Endpoint]:
    """Those of the candidates that a request may go to: the one that keeps the response it is about, or all where it is
    about none or no router has tagged it.

    Raises:
        Refused: 503, the engine that keeps it is not ready; 404 (400 where the request goes on from it), it is gone.
    """
    response_id = request.response_id
    tag = (endpoints.moved_responses.tag_of(response_id) or tag_in(response_id)) if response_id else ""
    if not tag:
        return candidates
    found = [endpoint for endpoint in candidates if endpoint.response_tag == tag]
    if found:
        return found
    if any(endpoint.response_tag == tag and endpoint.admits for endpoint in endpoints.of_service(service)):
        message = f"the engine that keeps response {response_id!r} is not ready; try again shortly"
        raise Refused(503, f"{message}, or send the whole conversation in 'input'", code="busy", retry_after=1)
    if request.path in GOING_ON:
        message = f"Previous response with id {response_id!r} not found: the engine that kept it is gone."
        raise Refused(400, f"{message} Send the whole conversation in 'input'.", code="previous_response_not_found")
    message = f"Response with id {response_id!r} not found: the engine that kept it is gone."
    raise Refused(404, message, code="response_not_found")
