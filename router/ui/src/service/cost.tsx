import { Panel } from "../components/panel";
import { count, DASH } from "../state/format";
import { statusOf, useService } from "./use_service";

/** What tokens cost, measured, where the spec says what engines do. */
export function Cost() {
  const { cost } = statusOf(useService());
  if (!cost) return null;
  const money = (amount: string | undefined) => (amount ? `${amount}\u00a0${cost.currency}` : DASH);
  return (
    <Panel title="Cost" note={cost.window ? `of the last ${cost.window}` : "not measured yet"}>
      <dl class="numbers">
        <div>
          <dt>Per million tokens</dt>
          <dd>{money(cost.perMillionTokens)}</dd>
        </div>
        <div>
          <dt>Per million completion tokens</dt>
          <dd>{money(cost.perMillionCompletionTokens)}</dd>
        </div>
        <div>
          <dt>Per hour</dt>
          <dd>{money(cost.perHour)}</dd>
        </div>
      </dl>
      <p class="panel-text muted">
        {cost.engineHours || DASH} engine hours, {count(cost.promptTokens ?? null)} prompt and{" "}
        {count(cost.completionTokens ?? null)} completion tokens
      </p>
    </Panel>
  );
}
