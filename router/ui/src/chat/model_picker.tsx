import { useStore } from "../state/store";
import { models } from "./model/models";

/** A model, or an adapter of one. */
export function ModelPicker({
  model,
  label,
  onChoose,
}: {
  model: string;
  label: string;
  onChoose: (id: string) => void;
}) {
  const list = useStore(models);
  const bases = list.filter((one) => one.parent === null);
  const parents = [...new Set(list.flatMap((one) => (one.parent === null ? [] : [one.parent])))];
  const known = list.some((one) => one.id === model);
  return (
    <select
      class="model-picker"
      aria-label={label}
      title={label}
      value={model}
      onChange={(event) => onChoose(event.currentTarget.value)}
    >
      {!known && <option value={model}>{model ? `${model} (not served)` : "No model"}</option>}
      {parents.length ? (
        <optgroup label="Models">
          {bases.map((one) => (
            <option key={one.id}>{one.id}</option>
          ))}
        </optgroup>
      ) : (
        bases.map((one) => <option key={one.id}>{one.id}</option>)
      )}
      {parents.map((parent) => (
        <optgroup key={parent} label={`Adapters of ${parent}`}>
          {list
            .filter((one) => one.parent === parent)
            .map((one) => (
              <option key={one.id}>{one.id}</option>
            ))}
        </optgroup>
      ))}
    </select>
  );
}
