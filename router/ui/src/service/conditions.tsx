import { Panel } from "../components/panel";
import { moment, parseTime } from "../state/format";
import { BADGE, conditionTree, type Judged, type Tone, WORDS } from "./model/conditions";
import { useService } from "./use_service";

const MARKS: Record<Tone, string> = { good: "✓", busy: "…", warn: "!", bad: "✕", unknown: "?" };

export function Conditions() {
  const service = useService();
  const conditions = service?.object.status?.conditions ?? [];
  const { root, needed, besides } = conditionTree(conditions);
  if (!root && !conditions.length) {
    return (
      <Panel title="Conditions">
        <p class="panel-empty">The operator has not written a status yet.</p>
      </Panel>
    );
  }
  return (
    <Panel title="Conditions" note={counted([...needed, ...besides])}>
      <ul class="conditions">
        {root && (
          <Item judged={root}>
            <ul>
              {needed.map((each) => (
                <Item key={each.condition.type} judged={each} />
              ))}
            </ul>
          </Item>
        )}
        {!root && needed.map((each) => <Item key={each.condition.type} judged={each} />)}
        {besides.map((each) => (
          <Item key={each.condition.type} judged={each} />
        ))}
      </ul>
    </Panel>
  );
}

function counted(all: Judged[]): string {
  const wrong = all.filter((each) => each.tone !== "good").length;
  return wrong ? `${wrong} of ${all.length} not OK` : "all OK";
}

function Item({ judged: { condition, tone }, children }: { judged: Judged; children?: preact.ComponentChildren }) {
  const since = parseTime(condition.lastTransitionTime);
  return (
    <li class={`condition ${tone}`}>
      <div class="condition-line">
        <span class={`mark ${BADGE[tone]}`} aria-hidden="true">
          {MARKS[tone]}
        </span>
        <span class="condition-name">{condition.type}</span>
        <span class="condition-reason" title={since === null ? undefined : `since ${moment(since)}`}>
          {condition.reason}
        </span>
        <span class={`badge ${BADGE[tone]}`}>{WORDS[tone]}</span>
        {condition.message && <span class="condition-message">{condition.message}</span>}
      </div>
      {children}
    </li>
  );
}
