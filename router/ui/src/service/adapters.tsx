import { Panel } from "../components/panel";
import { bytes, DASH } from "../state/format";
import { statusOf, useService } from "./use_service";

interface Adapter {
  name: string;
  desired?: number;
  loaded?: number;
  bytes?: number;
  reason?: string;
}

/** LoRA adapters, and on how many engines they really are. */
export function Adapters() {
  const service = useService();
  const status = statusOf(service);
  const adapters: Adapter[] = status.adapters ?? [];
  if (!adapters.length) return null;
  return (
    <Panel
      title="Adapters"
      note={status.adaptersReady ? `${status.adaptersReady.replace("/", " of ")} everywhere` : undefined}
    >
      <table class="data">
        <thead>
          <tr>
            <th scope="col">Name</th>
            <th scope="col" class="num">
              Engines
            </th>
            <th scope="col" class="num">
              Size
            </th>
            <th scope="col">State</th>
          </tr>
        </thead>
        <tbody>
          {adapters.map((adapter) => {
            const complete = (adapter.loaded ?? 0) >= (adapter.desired ?? 0);
            return (
              <tr key={adapter.name}>
                <td class="mono breaks">{adapter.name}</td>
                <td class="num">
                  {adapter.loaded ?? 0} of {adapter.desired ?? 0}
                </td>
                <td class="num">{adapter.bytes ? bytes(adapter.bytes) : DASH}</td>
                <td>
                  <span class={`badge ${complete ? "ok" : "warn"}`}>{complete ? "loaded" : "missing"}</span>
                  {adapter.reason && <span class="cell-why">{adapter.reason}</span>}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </Panel>
  );
}
