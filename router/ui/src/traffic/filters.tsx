import { useId } from "preact/hooks";
import { Button } from "../components/button";
import { choices, type Filter, NO_FILTER, type Outcome } from "./model/filter";
import type { Request } from "../state/types";

const OUTCOMES: [Outcome, string][] = [
  ["flight", "in flight"],
  ["ok", "succeeded"],
  ["error", "failed"],
  ["retried", "retried or resumed"],
];

export function Filters({
  requests,
  filter,
  onChange,
}: {
  requests: Request[];
  filter: Filter;
  onChange: (filter: Filter) => void;
}) {
  const { keys, models, engines } = choices(requests, filter);
  const set = (change: Partial<Filter>) => onChange({ ...filter, ...change });
  const pairs = (names: string[]) => names.map((name): [string, string] => [name, name]);
  const active = Object.values(filter).some(Boolean);
  return (
    <div class="filters" role="group" aria-label="Filter">
      <Choice name="Key" value={filter.key} values={pairs(keys)} onChange={(key) => set({ key })} />
      <Choice name="Model" value={filter.model} values={pairs(models)} onChange={(model) => set({ model })} />
      <Choice name="Engine" value={filter.engine} values={pairs(engines)} onChange={(engine) => set({ engine })} />
      <Choice
        name="Status"
        value={filter.outcome}
        values={OUTCOMES}
        onChange={(outcome) => set({ outcome: outcome as Outcome })}
      />
      <Button kind="quiet" disabled={!active} onClick={() => onChange(NO_FILTER)}>
        Clear
      </Button>
    </div>
  );
}

function Choice({
  name,
  value,
  values,
  onChange,
}: {
  name: string;
  value: string;
  values: [string, string][];
  onChange: (value: string) => void;
}) {
  const id = useId();
  return (
    <span class="choice">
      <label for={id}>{name}</label>
      <select id={id} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        <option value="">all</option>
        {values.map(([each, text]) => (
          <option key={each} value={each}>
            {text}
          </option>
        ))}
      </select>
    </span>
  );
}
