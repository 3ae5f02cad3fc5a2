import { Panel } from "../components/panel";
import { moment } from "../state/format";
import { useService } from "./use_service";

/** Kubernetes' events of the service and its pods, the newest first. */
export function Events() {
  const service = useService();
  const events = [...(service?.events ?? [])].reverse();
  return (
    <Panel title="Events" note={events.length ? `the last ${events.length}` : undefined}>
      {events.length ? (
        <ul class="log events" tabIndex={0} aria-label="Events">
          {events.map((event) => (
            <li key={`${event.object} ${event.reason} ${event.message}`}>
              <span class="log-time">{moment(event.time)}</span>
              <span class={`badge ${event.type === "Warning" ? "warn" : ""}`}>
                {event.type === "Warning" && <span class="offscreen">Warning: </span>}
                {event.reason}
                {event.count > 1 && ` ×${event.count}`}
              </span>
              <span class="log-text">
                {event.message} <span class="muted breaks">{event.object}</span>
              </span>
            </li>
          ))}
        </ul>
      ) : (
        <p class="panel-empty">No Events reported.</p>
      )}
    </Panel>
  );
}
