import { duration } from "../state/format";
import { useStore } from "../state/store";
import { liveState } from "../state/stream";

/** What is known of a router that no operator keeps. */
export function Alone() {
  const router = useStore(liveState, (state) => state?.router);
  const up = useStore(liveState, (state) => (state ? Math.floor((state.time - state.router.started) / 60) * 60 : 0));
  if (!router) return null;
  return (
    <div class="service-head">
      <div class="service-title">
        <h2>Router</h2>
        <span class="badge">runs alone</span>
      </div>
      <p class="muted">
        No operator reports to this router: conditions, rollouts and scaling are shown where one does.
      </p>
      <dl class="facts-line">
        <div>
          <dt>Version</dt>
          <dd class="mono">{router.version}</dd>
        </div>
        <div>
          <dt>Policy</dt>
          <dd class="mono">{router.policy}</dd>
        </div>
        <div>
          <dt>Up</dt>
          <dd>{up ? duration(up) : "less than a minute"}</dd>
        </div>
        <div>
          <dt>Models</dt>
          <dd class="mono breaks">{router.models.map((model) => model.id).join(", ") || "none"}</dd>
        </div>
      </dl>
    </div>
  );
}
