/** What was sent, as a command or a program that sends the same. The key stands in an environment variable. */

import type { LLMService } from "../../state/types";
import { toYaml } from "../../state/yaml";
import type { Fields } from "./types";

export const KEY_VARIABLE = "API_KEY";

export function asCurl(url: string, body: Fields, keyed: boolean): string {
  const data = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const lines = [`curl -N ${url}/chat/completions`, "-H 'content-type: application/json'"];
  if (keyed) lines.push(`-H "authorization: Bearer $${KEY_VARIABLE}"`);
  lines.push(`-d '${data}'`);
  return lines.join(" \\\n  ");
}

/** Parameters of `openai`'s `chat.completions.create`; all else goes into `extra_body`. */
const OPENAI = new Set([
  "messages",
  "model",
  "frequency_penalty",
  "logit_bias",
  "logprobs",
  "max_completion_tokens",
  "n",
  "parallel_tool_calls",
  "presence_penalty",
  "reasoning_effort",
  "response_format",
  "seed",
  "stop",
  "stream",
  "stream_options",
  "temperature",
  "tool_choice",
  "tools",
  "top_logprobs",
  "top_p",
]);

export function asPython(url: string, body: Fields, keyed: boolean, model: string): string {
  const given: Fields = { model, ...body };
  // The client's own type has no continuous_usage_stats, but sends what it is given
  const own = Object.entries(given).filter(([name]) => OPENAI.has(name));
  const extra = Object.fromEntries(Object.entries(given).filter(([name]) => !OPENAI.has(name)));
  if (Object.keys(extra).length) own.push(["extra_body", extra]);
  const parameters = own.map(([name, value]) => `    ${name}=${python(value, "    ")},`).join("\n");
  const key = keyed ? `os.environ["${KEY_VARIABLE}"]` : '"none"';
  return `${keyed ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${python(url)}, api_key=${key})
stream = client.chat.completions.create(
${parameters}
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
print()
`;
}

/** A JSON value as Python writes it. */
export function python(value: unknown, indent = ""): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return pythonString(value);
  if (typeof value !== "object") return String(value);
  const inner = `${indent}    `;
  const items = Array.isArray(value)
    ? value.map((item) => python(item, inner))
    : Object.entries(value).map(([key, item]) => `${pythonString(key)}: ${python(item, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = `${open}${items.join(", ")}${close}`;
  if (line.length <= 88 && !line.includes("\n")) return line;
  return `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${indent}${close}`;
}

/** JSON's escapes are Python's, but for a surrogate pair, which JSON.stringify leaves as the character itself. */
const pythonString = (text: string) => JSON.stringify(text);

/** What the operator reports in place of secrets. */
const HIDDEN = "…";

/** The manifest of the service that answered: as the operator reported it, or one to begin with, with a comment why. */
export function asManifest(model: string, parent: string | null, object: LLMService | null): string {
  if (object && Object.keys(object.spec).length) {
    const { name, namespace } = object.metadata;
    const { apiVersion, kind, spec } = object;
    const manifest = toYaml({ apiVersion, kind, metadata: { name, namespace }, spec: filled(spec) });
    return manifest.includes(HIDDEN)
      ? `# What is shown as ${HIDDEN} is hidden from this page: fill it in before you apply this.\n${manifest}`
      : manifest;
  }
  const served = parent ?? model;
  const name =
    served
      .toLowerCase()
      .replace(/[^a-z0-9]+/g, "-")
      .replace(/^-+|-+$/g, "")
      .slice(0, 50) || "model";
  const manifest = toYaml({
    apiVersion: object?.apiVersion ?? "serving.bladellm.io/v1alpha1",
    kind: "LLMService",
    metadata: object ? { name: object.metadata.name, namespace: object.metadata.namespace } : { name },
    spec: {
      model: { uri: "hf://OWNER/MODEL", servedNames: [served] },
      ...(parent !== null && {
        engine: { lora: { maxGPU: 4, maxRank: 16 } },
        adapters: [{ name: model, uri: "hf://OWNER/ADAPTER" }],
      }),
      replicas: 1,
    },
  });
  const why = object ? "This page is not shown the service's spec" : "This router has no operator";
  return `# ${why}, so this is an example: fill in the model's uri.\n${manifest}`;
}

/** Without what says nothing: empty texts, which are the defaults of images and the like. */
function filled(value: unknown): unknown {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
  return Object.fromEntries(
    Object.entries(value)
      .filter(([, item]) => item !== "" && item !== null)
      .map(([key, item]) => [key, filled(item)]),
  );
}
