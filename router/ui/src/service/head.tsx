import { useState } from "preact/hooks";
import { Button } from "../components/button";
import { CopyButton } from "../components/copy";
import { age, DASH } from "../state/format";
import { useStore } from "../state/store";
import { liveState } from "../state/stream";
import { BADGE, tone } from "./model/conditions";
import { isPublic, statusOf, useService } from "./use_service";
import { YamlDialog } from "./yaml_dialog";

const PHASES: Record<string, string> = {
  Ready: "ok",
  ScaledToZero: "ok",
  Sleeping: "ok",
  Degraded: "warn",
  Failed: "bad",
  Invalid: "bad",
};

/** Name, phase and URL of the service, and what Ready says. */
export function ServiceHead() {
  const service = useService();
  const [yaml, setYaml] = useState(false);
  if (!service) return null;
  const { metadata, spec } = service.object;
  const status = statusOf(service);
  const ready = status.conditions?.find((each: { type: string }) => each.type === "Ready");
  const behind =
    status.observedGeneration !== undefined &&
    metadata.generation !== undefined &&
    status.observedGeneration < metadata.generation;
  return (
    <div class="service-head">
      <div class="service-title">
        <h2>{metadata.name}</h2>
        <span class={`badge ${PHASES[status.phase] ?? "info"}`}>{status.phase ?? "Pending"}</span>
        {behind && <span class="badge warn">spec {metadata.generation} is not in effect yet</span>}
        <span class="service-title-end">
          <Reported />
          {!isPublic(service) && (
            <Button icon="code" onClick={() => setYaml(true)}>
              YAML
            </Button>
          )}
        </span>
      </div>
      {ready && (
        <p class="service-ready">
          <span class={`dot-text ${BADGE[tone(ready)]}`}>{ready.reason}</span> {ready.message}
        </p>
      )}
      {isPublic(service) && (
        <p class="muted">
          This key sees phase, engines and conditions; a key with <code>"web_ui": "all"</code> sees spec, pods and Events, too.
        </p>
      )}
      <dl class="facts-line">
        {spec.model?.uri && (
          <div>
            <dt>Model</dt>
            <dd class="mono">{spec.model.uri}</dd>
          </div>
        )}
        {status.url && (
          <div>
            <dt>URL</dt>
            <dd class="mono with-copy">
              {status.url}
              <CopyButton text={status.url} label="Copy the URL" />
            </dd>
          </div>
        )}
        <div>
          <dt>Engines ready</dt>
          <dd>
            {status.readyReplicas ?? 0} of {status.desiredReplicas ?? DASH}
          </dd>
        </div>
      </dl>
      {yaml && <YamlDialog onClose={() => setYaml(false)} />}
    </div>
  );
}

/** The operator reports what changes at once, and all of it every five minutes: older than two of them is old. */
const OLD = 660;

/** How old the operator's report is. */
function Reported() {
  const seconds = useStore(liveState, (state) =>
    state?.service ? Math.max(0, Math.floor((state.time - state.service.reported) / 5) * 5) : 0,
  );
  return (
    <span
      class={seconds > OLD ? "reported old" : "reported"}
      title="When the operator last reported the service to this router"
    >
      reported {seconds < 5 ? "just now" : age(seconds)}
    </span>
  );
}
