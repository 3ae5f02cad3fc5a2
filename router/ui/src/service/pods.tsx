import { useState } from "preact/hooks";
import { Button } from "../components/button";
import { Panel } from "../components/panel";
import { DASH } from "../state/format";
import type { Pod } from "../state/types";
import { useService } from "./use_service";

const FEW = 12;

/** Pods: those that fail first, with the failing container's last line. */
export function Pods() {
  const service = useService();
  const [all, setAll] = useState(false);
  if (!service) return null;
  const pods = [...service.pods].sort((a, b) => rank(a) - rank(b) || names.compare(a.name, b.name));
  const shown = all ? pods : pods.slice(0, Math.max(FEW, pods.filter((pod) => !pod.ready).length));
  return (
    <Panel title="Pods" note={`${pods.filter((pod) => pod.ready).length} of ${pods.length} ready`}>
      <div class="table-scroll">
        <table class="data pods cards">
          <thead>
            <tr>
              <th scope="col">Pod</th>
              <th scope="col">State</th>
              <th scope="col">Role</th>
              <th scope="col">Revision</th>
              <th scope="col">Node</th>
              <th scope="col" class="num">
                Restarts
              </th>
            </tr>
          </thead>
          <tbody>
            {shown.map((pod) => (
              <Row key={pod.name} pod={pod} />
            ))}
          </tbody>
        </table>
      </div>
      {pods.length > FEW && (
        <div class="panel-foot">
          <Button kind="quiet" onClick={() => setAll(!all)} aria-expanded={all}>
            {all ? "Show fewer" : `Show all ${pods.length}`}
          </Button>
        </div>
      )}
    </Panel>
  );
}

const names = new Intl.Collator(undefined, { numeric: true });
const rank = (pod: Pod): number => (pod.message ? 0 : pod.ready ? 2 : 1);

function Row({ pod }: { pod: Pod }) {
  return (
    <>
      <tr class={pod.message ? "with-more" : undefined}>
        <th scope="row" class="mono breaks">
          {pod.name}
        </th>
        <td data-label="State">
          <span class={`badge ${pod.ready ? "ok" : pod.message ? "bad" : "info"}`}>
            {pod.ready ? "ready" : pod.message ? "failing" : "not ready"}
          </span>
          {!pod.ready && <span class="muted"> {pod.phase}</span>}
        </td>
        <td data-label="Role">{pod.role}</td>
        <td data-label="Revision" class="mono">
          {pod.revision ?? DASH}
        </td>
        <td data-label="Node" class="breaks">
          {pod.node ?? DASH}
        </td>
        <td data-label="Restarts" class="num">
          {pod.restarts}
        </td>
      </tr>
      {pod.message && (
        <tr class="more">
          <td colSpan={6}>
            <pre class="wraps">{pod.message}</pre>
          </td>
        </tr>
      )}
    </>
  );
}
