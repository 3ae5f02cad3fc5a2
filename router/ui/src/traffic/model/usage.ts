/** Why a request's tokens are not known. */
import type { Request } from "../../state/types";
import { inFlight, isError, isUnrecorded } from "./filter";

/** In words; null where they are known, or where there were none. */
export function usageUnknown(request: Request): string | null {
  if (request.completionTokens !== null || isError(request) || isUnrecorded(request)) return null;
  if (inFlight(request)) return "not known before the response ends";
  return request.stream
    ? "not known: the stream reported no usage, as it does with stream_options.include_usage"
    : "not known: the response reported no usage";
}
