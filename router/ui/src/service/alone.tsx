import { duration } from "../state/format";
import { useStore } from "../state/store";
import { liveState } from "../state/stream";

/** What is known of a router to which no operator has reported a service. */
export function Alone() {
  const router = useStore(liveState, (state) => state?.router);
  const up = useStore(liveState, (state) => (state ? Math.floor((state.time - state.router.started) / 60) * 60 : 0));
  if (!router) return null;
  return (
    <div class="service-head">
      <div class="service-title">
        <h2>Router</h2>
        <span class="badge">no operator</span>
      </div>
      <p>
        No operator has reported a service to this router, so there are no conditions, rollouts, scaling, pods or Events to
        show. The router, its engines and its traffic are shown as it knows them itself.
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
