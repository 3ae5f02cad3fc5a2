import type { ComponentChildren } from "preact";
import { CopyButton } from "../components/copy";
import { Dialog } from "../components/dialog";
import { clock, count, DASH, duration, percent } from "../state/format";
import type { Request } from "../state/types";
import { WaterfallBar } from "./bar";
import { explainReason } from "./model/reason";
import { usageUnknown } from "./model/usage";
import { StatusBadge } from "./status";
import { bars, PHASES, took, tpot } from "./model/waterfall";

/** All that the router knows of one request. */
export function Details({ request, now, onClose }: { request: Request; now: number; onClose: () => void }) {
  const total = took(request, now);
  const speed = tpot(request);
  const unknown = usageUnknown(request);
  const cached =
    request.promptTokens && request.cachedTokens !== null ? request.cachedTokens / request.promptTokens : null;
  return (
    <Dialog title="Request" onClose={onClose} wide>
      <div class="details">
        <div class="details-bar">
          <WaterfallBar request={request} now={now} scale={Math.max(total, 0.001)} />
          <ul class="legend">
            {bars(request, now).map((bar) => (
              <li key={bar.phase}>
                <span class={`swatch phase-${bar.phase}`} aria-hidden="true" />
                <span class="legend-label">{PHASES[bar.phase]}</span>
                <span class="legend-value">
                  {duration(bar.to - bar.from)}
                  {bar.open ? " so far" : ""}
                </span>
              </li>
            ))}
          </ul>
        </div>
        <dl class="pairs">
          <Pair name="Status">
            <StatusBadge request={request} />
          </Pair>
          <Pair name="Started">{clock(request.started)}</Pair>
          <Pair name="Total">
            {duration(total)}
            {request.end === null ? " so far" : ""}
          </Pair>
          <Pair name="TTFT">{duration(request.firstToken)}</Pair>
          <Pair name="TPOT">{duration(speed)}</Pair>
          <Pair name="Prompt">{count(request.promptTokens)} tokens</Pair>
          <Pair name="Cached">
            {count(request.cachedTokens)}
            {cached === null ? "" : ` (${percent(cached)})`}
          </Pair>
          <Pair name="Completion">{count(request.completionTokens)} tokens</Pair>
          <Pair name="Key">{request.key ?? DASH}</Pair>
          <Pair name="Model" copy={request.model}>
            {request.model}
          </Pair>
          {unknown && (
            <Pair name="Tokens" wide>
              {unknown}
            </Pair>
          )}
          {request.error && (
            <Pair name="Error" wide copy={request.error}>
              <code>{request.error}</code>
            </Pair>
          )}
          <Pair name="Path" wide>
            <code>{request.path}</code> {request.stream ? "(stream)" : ""}
          </Pair>
          <Pair name="Engine" wide copy={request.endpoint}>
            <code>{request.endpoint ?? DASH}</code>
          </Pair>
          <Pair name="Request id" wide copy={request.id}>
            <code>{request.id}</code>
          </Pair>
          <Pair name="Trace id" wide copy={request.traceId}>
            <code>{request.traceId ?? DASH}</code>
          </Pair>
        </dl>
        {request.reason && <Reason reason={request.reason} />}
        {request.attempts.length > 0 && <Attempts request={request} />}
      </div>
    </Dialog>
  );
}

interface PairProps {
  name: string;
  /** What its button copies. */
  copy?: string | null;
  /** A line of its own. */
  wide?: boolean;
  children: ComponentChildren;
}

function Pair({ name, copy, wide, children }: PairProps) {
  return (
    <div class={wide ? "own-line" : undefined}>
      <dt>{name}</dt>
      <dd>
        <span class="breaks">{children}</span>
        {copy && <CopyButton text={copy} label={`Copy: ${name.toLowerCase()}`} />}
      </dd>
    </div>
  );
}

function Reason({ reason }: { reason: string }) {
  const { policy, facts } = explainReason(reason);
  return (
    <section>
      <h3>Why this engine</h3>
      <dl class="pairs">
        <Pair name="Policy" copy={reason}>
          {policy || DASH}
        </Pair>
        {facts.map((fact) => (
          <Pair key={fact.name} name={fact.name}>
            {fact.value}
          </Pair>
        ))}
      </dl>
    </section>
  );
}

function Attempts({ request }: { request: Request }) {
  return (
    <section>
      <h3>Attempts</h3>
      <table class="data">
        <thead>
          <tr>
            <th scope="col" class="num">
              After
            </th>
            <th scope="col">Engine</th>
            <th scope="col">Outcome</th>
          </tr>
        </thead>
        <tbody>
          {request.attempts.map((attempt, index) => (
            <tr key={index}>
              <td class="num">{duration(attempt.at)}</td>
              <td class="mono breaks">{attempt.endpoint}</td>
              <td>{attempt.outcome}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
