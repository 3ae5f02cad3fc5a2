import { Panel } from "../components/panel";
import { bytes, count, DASH, duration, percent } from "../state/format";
import { statusOf, useService } from "./use_service";

/** The model's download, and what speculative decoding brings: each only where there is something to say. */
export function Facts() {
  const service = useService();
  const { model, speculation } = statusOf(service);
  const loading = model && model.bytes > 0 && (model.downloaded ?? 0) < model.bytes;
  if (!loading && !speculation) return null;
  return (
    <>
      {loading && (
        <Panel title="Download" note={percent((model.downloaded ?? 0) / model.bytes)}>
          <div class="progress">
            <span>
              {bytes(model.downloaded ?? 0)} of {bytes(model.bytes)}
              {model.bytesPerSecond ? `, ${bytes(model.bytesPerSecond)}/s` : ""}
              {model.etaSeconds ? `, ${duration(model.etaSeconds)} left` : ""}
            </span>
            <span
              class="meter-track"
              role="progressbar"
              aria-label="Download"
              aria-valuemin={0}
              aria-valuemax={100}
              aria-valuenow={Math.round((100 * (model.downloaded ?? 0)) / model.bytes)}
            >
              <span
                class="meter-fill"
                style={{ width: `${((100 * (model.downloaded ?? 0)) / model.bytes).toFixed(1)}%` }}
              />
            </span>
          </div>
        </Panel>
      )}
      {speculation && (
        <Panel title="Speculative decoding" note={service?.object.spec.engine?.speculative?.method}>
          <dl class="numbers">
            <div>
              <dt>Acceptance</dt>
              <dd>{speculation.acceptance ? percent(Number(speculation.acceptance)) : DASH}</dd>
            </div>
            <div>
              <dt>Draft tokens</dt>
              <dd>{speculation.drafted ? count(speculation.drafted) : DASH}</dd>
            </div>
          </dl>
        </Panel>
      )}
    </>
  );
}
