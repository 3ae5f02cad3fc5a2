import { useMemo, useState } from "preact/hooks";
import { Meter } from "../components/meter";
import { Panel } from "../components/panel";
import { bytes, count, DASH, number, percent, short } from "../state/format";
import { useStore } from "../state/store";
import { liveState } from "../state/stream";
import type { Endpoint } from "../state/types";
import { BY_NAME, type Column, memory, type Order, sortEndpoints, totals } from "./model/engines";

const COLUMNS: [Column, string, boolean][] = [
  ["name", "Engine", false],
  ["revision", "Revision", false],
  ["weight", "Weight", true],
  ["load", "Load", true],
  ["kv", "KV cache", true],
  ["hits", "Cache hits", true],
  ["memory", "GPU memory", true],
  ["acceptance", "Acceptance", true],
  ["speed", "Tokens/s", true],
  ["adapters", "Adapters", false],
];
const BADGES: Record<Endpoint["state"], string> = {
  ready: "ok",
  starting: "info",
  draining: "warn",
  ejected: "bad",
  unreachable: "bad",
};
const NONE: Endpoint[] = [];
/** More engines than that scroll within the panel. */
const MANY = 16;

/** The engines, as this router knows them. */
export function Engines() {
  const endpoints = useStore(liveState, (state) => state?.endpoints ?? NONE);
  const [order, setOrder] = useState<Order>(BY_NAME);
  const sorted = useMemo(() => sortEndpoints(endpoints, order), [endpoints, order]);
  const all = totals(endpoints);
  const sortBy = (column: Column, isNumber: boolean) =>
    setOrder({ column, descending: order.column === column ? !order.descending : isNumber });
  return (
    <Panel title="Engines" note={`${all.ready} of ${endpoints.length} ready`}>
      {endpoints.length ? (
        <div
          class={endpoints.length > MANY ? "table-scroll many" : "table-scroll"}
          tabIndex={0}
          role="region"
          aria-label="Table of engines"
        >
          <table class="data engines cards">
            <thead>
              <tr>
                {COLUMNS.map(([column, name, isNumber]) => (
                  <th
                    key={column}
                    scope="col"
                    class={isNumber ? "num" : undefined}
                    aria-sort={order.column === column ? (order.descending ? "descending" : "ascending") : undefined}
                  >
                    <button type="button" class="sort" onClick={() => sortBy(column, isNumber)}>
                      {name}
                      {order.column === column && <span aria-hidden="true">{order.descending ? "↓" : "↑"}</span>}
                    </button>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {sorted.map((endpoint) => (
                <Row key={endpoint.name} endpoint={endpoint} />
              ))}
            </tbody>
            {endpoints.length > 1 && (
              <tfoot>
                <tr>
                  <th scope="row">All engines</th>
                  <td colSpan={2} class="wide-only" />
                  <td class="num" data-label="Load">
                    {all.running === null && all.inFlight ? `${count(all.inFlight)} in flight` : load(all)}
                    <Waiting requests={all.waiting} />
                  </td>
                  <td class="num" data-label="KV cache">
                    {all.kvTokens === null ? DASH : `${short(all.kvTokens)} tokens`}
                  </td>
                  <td colSpan={3} class="wide-only" />
                  <td class="num" data-label="Tokens/s">
                    {number(all.tokensPerSecond)}
                  </td>
                  <td class="wide-only" />
                </tr>
              </tfoot>
            )}
          </table>
        </div>
      ) : (
        <p class="panel-empty">No engine is known to this router.</p>
      )}
    </Panel>
  );
}

type Loaded = Pick<Endpoint, "running" | "waiting" | "maxRunning">;

/** Running requests, of the most that can. */
function load({ running, maxRunning }: Loaded): string {
  return running === null ? DASH : `${count(running)}${maxRunning ? ` / ${count(maxRunning)}` : ""}`;
}

function Waiting({ requests }: { requests: number | null }) {
  if (!requests) return null;
  return (
    <span class="waits">
      {" "}
      +{count(requests)}
      <span class="offscreen"> waiting</span>
    </span>
  );
}

function Row({ endpoint }: { endpoint: Endpoint }) {
  const device = memory(endpoint);
  return (
    <tr>
      <th scope="row" class="engine-cell">
        <span class="engine-name">
          <span class="mono breaks">{endpoint.name}</span>
          <span class={`badge ${BADGES[endpoint.state]}`}>{endpoint.state}</span>
        </span>
        {endpoint.address && !endpoint.name.includes(endpoint.address) && (
          <span class="cell-why mono address">{endpoint.address}</span>
        )}
        {endpoint.why && <span class="cell-why breaks">{endpoint.why}</span>}
      </th>
      <td data-label="Revision" class="mono">
        {endpoint.revision || DASH}
      </td>
      <td data-label="Weight" class="num">
        {number(endpoint.weight)}
      </td>
      <td
        data-label="Load"
        class="num"
        title={`${endpoint.inFlight} in flight from this router${endpoint.waiting ? `, ${endpoint.waiting} waiting in the engine` : ""}`}
      >
        <Meter
          label="Running requests"
          share={endpoint.running === null ? null : endpoint.maxRunning ? endpoint.running / endpoint.maxRunning : 0}
          unknown={endpoint.inFlight ? `${count(endpoint.inFlight)} in flight` : DASH}
          text={load(endpoint)}
          after={<Waiting requests={endpoint.waiting} />}
          high={0.9}
          full={1.01}
        />
      </td>
      <td
        data-label="KV cache"
        class="num"
        title={
          endpoint.kvTokens === null
            ? undefined
            : `${count(endpoint.kvTokens)} of ${count(endpoint.kvTokensTotal)} tokens`
        }
      >
        <Meter label="KV cache in use" share={endpoint.kvUsed} />
      </td>
      <td data-label="Cache hits" class="num">
        {percent(endpoint.prefixHit)}
      </td>
      <td data-label="GPU memory" class="num" title={gpuNames(endpoint)}>
        <Meter
          label="GPU memory in use"
          share={device?.share ?? null}
          text={device ? bytes(device.used) : DASH}
          high={0.97}
          full={0.995}
        />
      </td>
      <td data-label="Acceptance" class="num">
        {percent(endpoint.acceptance)}
      </td>
      <td data-label="Tokens/s" class="num">
        {number(endpoint.tokensPerSecond)}
      </td>
      <td data-label="Adapters" class="adapters-cell" title={endpoint.adapters.join(", ")}>
        {endpoint.adapters.length ? adapterNames(endpoint.adapters) : DASH}
      </td>
    </tr>
  );
}

function adapterNames(names: string[]): string {
  return names.length > 3 ? `${names.slice(0, 2).join(", ")} and ${names.length - 2} more` : names.join(", ");
}

function gpuNames({ gpus }: Endpoint): string | undefined {
  return gpus.length
    ? gpus.map((gpu) => `${gpu.name}: ${bytes(gpu.memoryUsed)} of ${bytes(gpu.memoryTotal)}`).join("\n")
    : undefined;
}
