import { Panel } from "../components/panel";
import { DASH, duration } from "../state/format";
import { useStore } from "../state/store";
import { liveState } from "../state/stream";
import { type CanaryView, type RevisionRow, type RolloutView, rolloutView } from "./model/rollout";
import { useService } from "./use_service";

const STATES: Record<RolloutView["state"], [string, string]> = {
  complete: ["ok", "Complete"],
  running: ["info", "In progress"],
  held: ["warn", "Held"],
  failed: ["bad", "Failed"],
};

/** Which revisions run, and how far a change has come. */
export function Rollout() {
  const service = useService();
  if (!service) return null;
  const view = rolloutView(service);
  const [badge, word] = STATES[view.state];
  return (
    <Panel title={view.canary ? "Canary" : "Rollout"} actions={<span class={`badge ${badge}`}>{word}</span>}>
      {view.canary && <Canary canary={view.canary} />}
      {!view.canary && view.message && <p class="panel-text">{view.message}</p>}
      {view.state !== "complete" && view.updated !== null && view.desired > 0 && (
        <Progress updated={view.updated} desired={view.desired} />
      )}
      {view.revisions.length > 0 && (
        <table class="data">
          <thead>
            <tr>
              <th scope="col">Revision</th>
              <th scope="col">State</th>
              <th scope="col" class="num">
                Engines ready
              </th>
            </tr>
          </thead>
          <tbody>
            {view.revisions.map((row) => (
              <Row key={row.name} row={row} pods={service.pods.length > 0} />
            ))}
          </tbody>
        </table>
      )}
    </Panel>
  );
}

function Row({ row, pods }: { row: RevisionRow; pods: boolean }) {
  return (
    <tr>
      <td class="mono">{row.name}</td>
      <td>
        {row.roles.length ? (
          row.roles.map((role) => (
            <span key={role} class={`badge ${role === "failed" ? "bad" : ""}`}>
              {role}
            </span>
          ))
        ) : (
          <span class="muted">leaving</span>
        )}
      </td>
      <td class="num">{pods ? `${row.ready} of ${row.engines}` : DASH}</td>
    </tr>
  );
}

function Progress({ updated, desired }: { updated: number; desired: number }) {
  const share = Math.min(1, updated / desired);
  return (
    <div class="progress">
      <span>
        {updated} of {desired} engines run the current revision
      </span>
      <span
        class="meter-track"
        role="progressbar"
        aria-label="Engines of the current revision"
        aria-valuemin={0}
        aria-valuemax={desired}
        aria-valuenow={updated}
      >
        <span class="meter-fill" style={{ width: `${(share * 100).toFixed(1)}%` }} />
      </span>
    </div>
  );
}

function Canary({ canary }: { canary: CanaryView }) {
  return (
    <div class="canary">
      <p class="panel-text">
        <strong>{canary.phase}</strong> · <span class="mono">{canary.revision}</span> has {canary.weight} % of the
        requests, <span class="mono">{canary.stable}</span> the others
        {canary.since !== null && <Since since={canary.since} />}
      </p>
      <ol class="steps" aria-label="Steps">
        {canary.steps.map((step) => (
          <li key={step.name} class={step.state} aria-current={step.state === "now" ? "step" : undefined}>
            {step.name}
            <span class="offscreen"> {step.state}</span>
          </li>
        ))}
      </ol>
      {canary.aborted && <p class="panel-text verdict bad">Aborted: {canary.verdict}</p>}
      {!canary.aborted && canary.phase !== "Running" && canary.verdict && <p class="panel-text">{canary.verdict}</p>}
      {!canary.aborted && <p class="panel-text muted">A step takes {canary.rule}.</p>}
    </div>
  );
}

function Since({ since }: { since: number }) {
  const seconds = useStore(liveState, (state) => Math.max(0, Math.floor((state?.time ?? since) - since)));
  return <span>, for {duration(seconds)}</span>;
}
