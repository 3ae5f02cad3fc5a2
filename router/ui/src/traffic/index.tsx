import { useEffect, useMemo, useState } from "preact/hooks";
import { Button } from "../components/button";
import { NoData } from "../components/no_data";
import { Panel } from "../components/panel";
import { useStore } from "../state/store";
import { liveState } from "../state/stream";
import type { Request, State } from "../state/types";
import { Details } from "./details";
import { commonPrefix } from "./model/names";
import { type Filter, filterRequests, NO_FILTER } from "./model/filter";
import { Filters } from "./filters";
import { Plots } from "./plots";
import { Requests } from "./requests";
import { PHASES, type Phase } from "./model/waterfall";

/** What comes and goes: plots of the last five minutes, and the last requests. */
export function Traffic() {
  const [paused, setPaused] = useState(false);
  const shownState = useStateUnless(paused);
  const state = useStore(liveState, (now) => now !== null) ? shownState : null; // without a key nothing is kept
  const [filter, setFilter] = useState<Filter>(NO_FILTER);
  const [opened, setOpened] = useState<Request | null>(null);
  const requests = state?.requests;
  const shown = useMemo(() => filterRequests(requests ?? [], filter), [requests, filter]);
  if (!state) return <NoData title="Traffic" />;
  const { router } = state;
  const current = opened && (state.requests.find((request) => request.id === opened.id) ?? opened);
  return (
    <div class="traffic">
      <div class="traffic-head">
        <h2>Traffic</h2>
        {router.scope === "own" && <span class="badge info">requests of the key {router.key ?? ""} only</span>}
        {router.replicas > 1 && <span class="muted">this router only, one of {router.replicas} replicas</span>}
        <Button aria-pressed={paused} onClick={() => setPaused(!paused)}>
          {paused ? "Resume" : "Pause"}
        </Button>
      </div>
      <Plots points={state.traffic.points} />
      <Panel title="Requests" note={`${shown.length} of the last ${state.requests.length}`} actions={<Legend />}>
        <Filters requests={state.requests} filter={filter} onChange={setFilter} />
        {shown.length ? (
          <Requests
            requests={shown}
            now={state.time}
            prefix={commonPrefix(state.endpoints.map((endpoint) => endpoint.name))}
            opened={opened?.id ?? null}
            onOpen={(id) => setOpened(state.requests.find((request) => request.id === id) ?? null)}
          />
        ) : (
          <p class="panel-empty">
            {state.requests.length ? "No request matches the filter." : "No requests yet."}
          </p>
        )}
      </Panel>
      {current && <Details request={current} now={state.time} onClose={() => setOpened(null)} />}
    </div>
  );
}

function Legend() {
  return (
    <ul class="legend phases">
      {(Object.keys(PHASES) as Phase[]).map((phase) => (
        <li key={phase}>
          <span class={`swatch phase-${phase}`} aria-hidden="true" />
          <span class="legend-label">{PHASES[phase]}</span>
        </li>
      ))}
      <li>
        <span class="swatch attempt-mark" aria-hidden="true" />
        <span class="legend-label">Retry or resume</span>
      </li>
    </ul>
  );
}

/** The live state; while `paused`, as it was then, and nothing renders. */
function useStateUnless(paused: boolean): State | null {
  const [state, setState] = useState(liveState.get());
  useEffect(() => {
    if (paused) return;
    const take = () => setState(liveState.get());
    take();
    return liveState.subscribe(take);
  }, [paused]);
  return state;
}
