/** The sampling fields of `POST /v1/chat/completions` (docs/compatibility.md), as the settings show them. */

import type { Fields } from "./types";

export type Kind = "number" | "integer" | "boolean" | "choice" | "lines" | "integers" | "json" | "text";

export interface Field {
  name: string;
  label: string;
  kind: Kind;
  /** What holds when it is left out. */
  default: string;
  help: string;
  min?: number;
  max?: number;
  choices?: string[];
}

export interface Group {
  name: string;
  fields: Field[];
}

const LINES = 'One a line; with escapes in quotes: "\\n"';
const STOPS = `${LINES}. At most 16`;

export const GROUPS: Group[] = [
  {
    name: "Sampling",
    fields: [
      {
        name: "temperature",
        label: "Temperature",
        kind: "number",
        min: 0,
        max: 1e6,
        default: "model's",
        help: "0 is greedy",
      },
      {
        name: "top_p",
        label: "Top p",
        kind: "number",
        min: 0,
        max: 1,
        default: "model's",
        help: "Smallest set of tokens with this probability",
      },
      { name: "top_k", label: "Top k", kind: "integer", min: -1, default: "model's", help: "0 or -1: off" },
      {
        name: "min_p",
        label: "Min p",
        kind: "number",
        min: 0,
        max: 1,
        default: "0",
        help: "Share of the likeliest token's probability",
      },
      { name: "seed", label: "Seed", kind: "integer", default: "random", help: "Same seed, same output" },
      { name: "n", label: "Outputs", kind: "integer", min: 1, max: 128, default: "1", help: "Each becomes a branch" },
    ],
  },
  {
    name: "Penalties",
    fields: [
      {
        name: "repetition_penalty",
        label: "Repetition",
        kind: "number",
        min: 1e-6,
        max: 1e6,
        default: "model's",
        help: "1: off",
      },
      { name: "presence_penalty", label: "Presence", kind: "number", min: -2, max: 2, default: "0", help: "-2 to 2" },
      { name: "frequency_penalty", label: "Frequency", kind: "number", min: -2, max: 2, default: "0", help: "-2 to 2" },
    ],
  },
  {
    name: "Length and stops",
    fields: [
      {
        name: "max_completion_tokens",
        label: "Max tokens",
        kind: "integer",
        min: 1,
        default: "all that fit",
        help: "Tokens to generate at most",
      },
      { name: "min_tokens", label: "Min tokens", kind: "integer", min: 0, default: "0", help: "No end before so many" },
      { name: "stop", label: "Stop strings", kind: "lines", default: "none", help: STOPS },
      {
        name: "stop_token_ids",
        label: "Stop token ids",
        kind: "integers",
        default: "none",
        help: "Separated by commas",
      },
      {
        name: "include_stop_str_in_output",
        label: "Keep the stop string",
        kind: "boolean",
        default: "false",
        help: "",
      },
      { name: "ignore_eos", label: "Ignore end of sequence", kind: "boolean", default: "false", help: "" },
      { name: "skip_special_tokens", label: "Skip special tokens", kind: "boolean", default: "true", help: "" },
      {
        name: "truncate_prompt_tokens",
        label: "Truncate the prompt",
        kind: "integer",
        min: -1,
        default: "off",
        help: "Tokens to keep; -1: as many as fit",
      },
      {
        name: "truncation_side",
        label: "Truncated side",
        kind: "choice",
        choices: ["left", "right"],
        default: "left",
        help: "right keeps the first tokens",
      },
    ],
  },
  {
    name: "Allowed tokens",
    fields: [
      { name: "logit_bias", label: "Logit bias", kind: "json", default: "none", help: 'Token id → bias: {"42": -100}' },
      { name: "bad_words", label: "Bad words", kind: "lines", default: "none", help: LINES },
      {
        name: "allowed_token_ids",
        label: "Allowed token ids",
        kind: "integers",
        default: "all",
        help: "Separated by commas",
      },
    ],
  },
  {
    name: "Beam search",
    fields: [
      {
        name: "use_beam_search",
        label: "Beam search",
        kind: "boolean",
        default: "false",
        help: "Search instead of sampling",
      },
      { name: "beam_width", label: "Beam width", kind: "integer", min: 1, max: 128, default: "outputs", help: "" },
      {
        name: "best_of",
        label: "Best of",
        kind: "integer",
        min: 0,
        max: 128,
        default: "outputs",
        help: "Samples of which the likeliest are returned",
      },
      {
        name: "length_penalty",
        label: "Length penalty",
        kind: "number",
        min: -10,
        max: 10,
        default: "1",
        help: "-10 to 10",
      },
      { name: "early_stopping", label: "Early stopping", kind: "boolean", default: "false", help: "" },
    ],
  },
  {
    name: "Reasoning and template",
    fields: [
      {
        name: "reasoning_effort",
        label: "Reasoning effort",
        kind: "choice",
        choices: ["none", "minimal", "low", "medium", "high", "xhigh", "max"],
        default: "model's",
        help: "For templates that know it",
      },
      { name: "include_reasoning", label: "Return the reasoning", kind: "boolean", default: "true", help: "" },
      {
        name: "chat_template_kwargs",
        label: "Template arguments",
        kind: "json",
        default: "none",
        help: '{"enable_thinking": true}',
      },
      {
        name: "chat_template",
        label: "Chat template",
        kind: "text",
        default: "model's",
        help: "Jinja, in place of the model's",
      },
      { name: "documents", label: "Documents", kind: "json", default: "none", help: '[{"title": "…", "text": "…"}]' },
      { name: "add_special_tokens", label: "Add special tokens", kind: "boolean", default: "template's", help: "" },
    ],
  },
  {
    name: "Scheduling",
    fields: [
      { name: "priority", label: "Priority", kind: "integer", default: "0", help: "Lower runs earlier" },
      {
        name: "cache_salt",
        label: "Cache salt",
        kind: "text",
        default: "none",
        help: "Prompts with other salts share no cache",
      },
    ],
  },
];

/** How an output is held to a form: one of these at most. */
export const FORMATS = {
  text: { name: "Free text", field: null },
  json_object: { name: "Any JSON object", field: null },
  json_schema: { name: "JSON Schema", field: "json_schema" },
  regex: { name: "Regular expression", field: "guided_regex" },
  choice: { name: "One of several", field: "guided_choice" },
  grammar: { name: "Grammar (Lark or GBNF)", field: "guided_grammar" },
} as const;

export type Format = keyof typeof FORMATS;

const BY_NAME = new Map(GROUPS.flatMap((group) => group.fields).map((field) => [field.name, field]));

/** What was typed cannot be sent; `field` is its name. */
export class FieldError extends Error {
  constructor(
    readonly field: string,
    message: string,
  ) {
    super(message);
  }
}

/** The value that a field has in a request; undefined: as if it were not there. Throws FieldError. */
export function parseField(name: string, typed: string): unknown {
  const field = BY_NAME.get(name);
  if (!field || typed.trim() === "") return undefined;
  switch (field.kind) {
    case "number":
    case "integer":
      return number(field, typed.trim());
    case "boolean":
      return typed === "true";
    case "lines":
      return linesOf(typed);
    case "integers":
      return typed
        .split(/[\s,]+/)
        .filter(Boolean)
        .map((part) => number({ ...field, kind: "integer", min: 0 }, part));
    case "json":
      return json(field.name, field.label, typed);
    default:
      return typed;
  }
}

/** The lines that are not empty; one that is a JSON string, in its quotes, stands for that string. */
export function linesOf(typed: string): string[] {
  return typed.split("\n").flatMap((line) => {
    if (!/^".+"$/.test(line)) return line === "" ? [] : [line];
    try {
      return [JSON.parse(line) as string];
    } catch {
      return [line];
    }
  });
}

/** A decimal comma is one: telephones in many countries have no point among their digits. */
function number(field: Field, typed: string): number {
  if (/^[-+]?[1-9]\d{0,2}(,\d{3})+$/.test(typed)) {
    throw new FieldError(field.name, `${field.label}: “${typed}” is not clear: write it without a comma between thousands`);
  }
  const value = Number(field.kind === "number" ? typed.replace(/^([-+]?\d*),(\d+)$/, "$1.$2") : typed);
  if (!Number.isFinite(value)) throw new FieldError(field.name, `${field.label}: “${typed}” is not a number`);
  if (field.kind === "integer" && !Number.isSafeInteger(value)) {
    const problem = Number.isInteger(value) ? `at most ${Number.MAX_SAFE_INTEGER}` : `a whole number, not ${typed}`;
    throw new FieldError(field.name, `${field.label}: ${problem}`);
  }
  if (field.min !== undefined && value < field.min)
    throw new FieldError(field.name, `${field.label}: at least ${field.min}`);
  if (field.max !== undefined && value > field.max)
    throw new FieldError(field.name, `${field.label}: at most ${field.max}`);
  return value;
}

export function json(name: string, label: string, typed: string): unknown {
  try {
    return JSON.parse(typed);
  } catch (error) {
    throw new FieldError(name, `${label}: not JSON (${(error as Error).message})`);
  }
}

/** The message of what is wrong with a field, or null. */
export function problemOf(parse: () => unknown): string | null {
  try {
    parse();
    return null;
  } catch (error) {
    if (error instanceof FieldError) return error.message;
    throw error;
  }
}

/** All changed sampling fields. Throws FieldError for the first that is wrong. */
export function samplingFields(values: Record<string, string>): Fields {
  const fields: Fields = {};
  for (const [name, typed] of Object.entries(values)) {
    const value = parseField(name, typed);
    if (value !== undefined) fields[name] = value;
  }
  return fields;
}
