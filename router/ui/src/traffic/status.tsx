import type { Request } from "../state/types";
import { inFlight, isError } from "./model/filter";

export function StatusBadge({ request }: { request: Request }) {
  if (inFlight(request)) return <span class="badge info">{request.firstToken === null ? "waiting" : "streaming"}</span>;
  if (request.status === 0) return <span class="badge">not recorded</span>; // it ended among too many others
  if (isError(request)) return <span class="badge bad">{request.status ?? "error"}</span>;
  return <span class="badge ok">{request.status ?? "done"}</span>;
}
