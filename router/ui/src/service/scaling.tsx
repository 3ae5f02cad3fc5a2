import { Panel } from "../components/panel";
import { DASH, moment } from "../state/format";
import { parseChange } from "./model/scaling";
import { statusOf, useService } from "./use_service";

/** The decision on the number of engines, and the last changes with the numbers behind them. */
export function Scaling() {
  const service = useService();
  const scaling = statusOf(service).scaling;
  if (!service) return null;
  if (!scaling) {
    return (
      <Panel title="Scaling" note="Fixed">
        <p class="panel-text">
          {service.object.spec.replicas ?? statusOf(service).desiredReplicas ?? DASH} engines, as{" "}
          <code>spec.replicas</code> says.
        </p>
      </Panel>
    );
  }
  const limits = service.object.spec.scaling ?? {};
  const changes = [...(scaling.changes ?? [])].reverse();
  return (
    <Panel title="Scaling" note={scaling.mode}>
      <dl class="numbers">
        <Number name="Desired" value={scaling.replicas} />
        <Number name="Needed" value={scaling.needed} />
        <Number name="Standby" value={scaling.standby} />
        <Number name="Min" value={limits.min} />
        <Number name="Max" value={limits.max} />
      </dl>
      {scaling.reason && <p class="panel-text">{scaling.reason}</p>}
      {changes.length > 0 && (
        <ul class="log" aria-label="Last changes">
          {changes.map((text: string) => {
            const change = parseChange(text);
            return (
              <li key={text}>
                {change.time !== null && <span class="log-time">{moment(change.time)}</span>}
                {change.time !== null && (
                  <span class="change">
                    {change.from} → {change.to}
                  </span>
                )}
                <span class="log-text">{change.why}</span>
              </li>
            );
          })}
        </ul>
      )}
    </Panel>
  );
}

function Number({ name, value }: { name: string; value: number | undefined }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value ?? DASH}</dd>
    </div>
  );
}
