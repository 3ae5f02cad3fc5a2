import { DASH } from "../state/format";
import type { Request } from "../state/types";
import { inFlight, isError, isUnrecorded } from "./model/filter";

export function StatusBadge({ request }: { request: Request }) {
  if (inFlight(request)) return <span class="badge info">{request.firstToken === null ? "waiting" : "streaming"}</span>;
  if (isUnrecorded(request))
    return (
      <span class="badge" title="It ended among too many others: how is not recorded">
        {DASH}
      </span>
    );
  if (isError(request)) return <span class="badge bad">{request.status ?? "error"}</span>;
  return <span class="badge ok">{request.status ?? "done"}</span>;
}
