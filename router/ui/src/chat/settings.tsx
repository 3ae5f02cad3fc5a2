import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import { Button, IconButton } from "../components/button";
import { useOverlay } from "../components/overlay";
import { FieldInput } from "./field_input";
import { change } from "./model/conversations";
import { FORMATS, GROUPS, problemOf } from "./model/fields";
import { formatFields, formatOf, parseTools } from "./model/request";
import type { Conversation, Settings } from "./model/types";

/** What all requests of a conversation are sent with. Only what was changed is sent. */
export function SettingsPanel({ conversation, onClose }: { conversation: Conversation; onClose: () => void }) {
  const { settings, system } = conversation;
  const panel = useOverlay<HTMLElement>("(width < 900px)", onClose);
  const set = (to: (settings: Settings) => Settings) =>
    change(conversation.id, (one) => ({ ...one, settings: to(one.settings) }), false);
  const setValue = (name: string, value: string) =>
    set((one) => {
      const { [name]: _, ...values } = one.values;
      return { ...one, values: value === "" ? values : { ...values, [name]: value } };
    });
  const counted = (names: string[]) => names.filter((name) => settings.values[name] !== undefined).length;
  const all = Object.keys(settings.values).length + (settings.tools ? 1 : 0);
  return (
    <aside ref={panel} class="settings" aria-label="Settings of this conversation">
      <header>
        <h2>Settings</h2>
        <Button kind="quiet" disabled={!all} onClick={() => set((one) => ({ ...one, values: {}, tools: "" }))}>
          Reset
        </Button>
        <IconButton data-focus label="Close the settings" icon="close" onClick={onClose} />
      </header>
      <div class="settings-body">
        <label class="field">
          <span>System prompt</span>
          <textarea
            rows={3}
            value={system}
            placeholder="None"
            onInput={(event) => {
              const text = event.currentTarget.value;
              change(conversation.id, (one) => ({ ...one, system: text }), false);
            }}
          />
        </label>
        {GROUPS.slice(0, 1).map(group)}
        <Section name="Output format" changed={formatOf(settings.values) === "text" ? 0 : 1}>
          <OutputFormat values={settings.values} setValue={setValue} />
        </Section>
        <Section name="Tools" changed={settings.tools.trim() ? 1 : 0}>
          <Tools settings={settings} setValue={setValue} setTools={(tools) => set((one) => ({ ...one, tools }))} />
        </Section>
        {GROUPS.slice(1).map(group)}
      </div>
    </aside>
  );

  function group({ name, fields }: (typeof GROUPS)[number]) {
    return (
      <Section key={name} name={name} changed={counted(fields.map((field) => field.name))} open={name === "Sampling"}>
        <div class="settings-grid">
          {fields.map((field) => (
            <FieldInput
              key={field.name}
              field={field}
              value={settings.values[field.name] ?? ""}
              onChange={(value) => setValue(field.name, value)}
            />
          ))}
        </div>
      </Section>
    );
  }
}

function Section({
  name,
  changed,
  open,
  children,
}: {
  name: string;
  changed: number;
  open?: boolean;
  children: ComponentChildren;
}) {
  return (
    <details class="section" open={open}>
      <summary>
        {name}
        {changed > 0 && <span class="badge info">{changed} changed</span>}
      </summary>
      <div class="section-body">{children}</div>
    </details>
  );
}

type SetValue = (name: string, value: string) => void;

const FORMAT_HINTS: Record<string, string> = {
  json_schema: '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}',
  regex: "[0-9]{4}-[0-9]{2}-[0-9]{2}",
  choice: "One a line; with escapes in quotes",
  grammar: 'start: "yes" | "no"',
};

function OutputFormat({ values, setValue }: { values: Record<string, string>; setValue: SetValue }) {
  const id = useId();
  const format = formatOf(values);
  const name = `format.${format}`;
  const typed = values[name] ?? "";
  const problem = typed.trim() ? problemOf(() => formatFields(values)) : null;
  return (
    <>
      <div class="field">
        <label for={`${id}-format`}>The output is</label>
        <select
          id={`${id}-format`}
          value={format}
          onChange={(event) =>
            setValue("format", event.currentTarget.value === "text" ? "" : event.currentTarget.value)
          }
        >
          {Object.entries(FORMATS).map(([key, { name }]) => (
            <option key={key} value={key}>
              {name}
            </option>
          ))}
        </select>
      </div>
      {FORMATS[format].field && (
        <label class="field">
          <span>{FORMATS[format].name}</span>
          <textarea
            class="mono"
            rows={7}
            spellcheck={false}
            placeholder={FORMAT_HINTS[format]}
            value={typed}
            aria-invalid={problem ? "true" : undefined}
            aria-describedby={`${id}-problem`}
            onInput={(event) => setValue(name, event.currentTarget.value)}
          />
        </label>
      )}
      <span id={`${id}-problem`} class="field-error">
        {problem}
      </span>
    </>
  );
}

const EXAMPLE_TOOL = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather of a city",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];

function Tools({
  settings,
  setValue,
  setTools,
}: {
  settings: Settings;
  setValue: SetValue;
  setTools: (tools: string) => void;
}) {
  const id = useId();
  const problem = problemOf(() => parseTools(settings.tools));
  const names = problem
    ? []
    : parseTools(settings.tools).flatMap((tool) => (tool.function as { name?: string } | undefined)?.name ?? []);
  const choice = settings.values.tool_choice ?? "";
  const gone = choice !== "" && !["none", "required", ...names].includes(choice);
  return (
    <>
      <label class="field">
        <span>Functions the model may call, as JSON</span>
        <textarea
          class="mono"
          rows={8}
          spellcheck={false}
          placeholder='[{"type": "function", "function": {"name": …}}]'
          value={settings.tools}
          aria-invalid={problem ? "true" : undefined}
          aria-describedby={`${id}-problem`}
          onInput={(event) => setTools(event.currentTarget.value)}
        />
      </label>
      <span id={`${id}-problem`} class="field-error">
        {problem}
      </span>
      {!settings.tools.trim() && (
        <Button onClick={() => setTools(JSON.stringify(EXAMPLE_TOOL, null, 2))}>Insert an example</Button>
      )}
      <div class="settings-grid">
        <div class="setting">
          <label for={`${id}-choice`}>Tool choice</label>
          <select
            id={`${id}-choice`}
            value={choice}
            onChange={(event) => setValue("tool_choice", event.currentTarget.value)}
          >
            <option value="">auto (default)</option>
            <option>none</option>
            <option>required</option>
            {names.map((name) => (
              <option key={name}>{name}</option>
            ))}
            {gone && <option value={choice}>{choice} (not among the tools)</option>}
          </select>
        </div>
        <div class="setting">
          <label for={`${id}-parallel`}>Several calls at once</label>
          <select
            id={`${id}-parallel`}
            value={settings.values.parallel_tool_calls ?? ""}
            onChange={(event) => setValue("parallel_tool_calls", event.currentTarget.value)}
          >
            <option value="">true (default)</option>
            <option>false</option>
          </select>
        </div>
      </div>
    </>
  );
}
