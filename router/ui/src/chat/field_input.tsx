import { useId } from "preact/hooks";
import { type Field, parseField, problemOf } from "./model/fields";

interface Props {
  field: Field;
  value: string;
  onChange: (value: string) => void;
}

/** One sampling field: empty means the default, which it shows. */
export function FieldInput({ field, value, onChange }: Props) {
  const id = useId();
  const problem = problemOf(() => parseField(field.name, value));
  const shared = {
    id,
    value,
    "aria-invalid": problem ? ("true" as const) : undefined,
    "aria-describedby": `${id}-help`,
    class: field.kind === "json" || field.kind === "text" ? "mono" : "",
    onInput: (event: { currentTarget: { value: string } }) => onChange(event.currentTarget.value),
  };
  return (
    <div class={`setting${value === "" ? "" : " changed"}${wide(field) ? " wide" : ""}`}>
      <label for={id} title={field.name}>
        {field.label}
      </label>
      {field.kind === "boolean" || field.kind === "choice" ? (
        <select {...shared}>
          <option value="">{field.default} (default)</option>
          {(field.choices ?? ["true", "false"])
            .filter((choice) => choice !== field.default)
            .map((choice) => (
              <option key={choice}>{choice}</option>
            ))}
        </select>
      ) : wide(field) ? (
        <textarea {...shared} rows={2} spellcheck={false} placeholder={field.default} />
      ) : (
        <input
          {...shared}
          type="text"
          inputMode={field.kind === "number" ? "decimal" : "text"}
          autocomplete="off"
          placeholder={field.default}
        />
      )}
      <span id={`${id}-help`} class={problem ? "field-error" : "field-help"}>
        {problem ?? field.help}
      </span>
    </div>
  );
}

const wide = (field: Field) =>
  field.kind === "lines" || field.kind === "json" || (field.kind === "text" && field.name !== "cache_salt");
