/** From a conversation to the body of `POST /v1/chat/completions`. */

import { FieldError, type Format, FORMATS, json, linesOf, samplingFields } from "./fields";
import { urlInCode } from "./images";
import { pathTo } from "./tree";
import type { AttachedImage, Fields, Pane, Sent, Settings, Turn } from "./types";

/** Alternatives for each token in the token view. */
export const TOP_LOGPROBS = 5;

/** All fields but the messages. Throws FieldError when something typed cannot be sent. */
export function requestFields(model: string, settings: Settings): Fields {
  const tools = parseTools(settings.tools);
  return {
    ...(model && { model }),
    ...samplingFields(settings.values),
    ...formatFields(settings.values),
    ...(tools.length > 0 && { tools, ...toolFields(settings.values) }),
    ...(settings.tokens && { logprobs: true, top_logprobs: TOP_LOGPROBS }),
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
}

/** The URL of an image; null where its file is gone: it is left out. */
type UrlOf = (image: AttachedImage) => string | null;

/** The whole body: messages first, as one reads it. */
export function body(sent: Sent, turns: Turn[], urlOf: UrlOf): Fields {
  const { model, ...rest } = sent.fields;
  return { ...(model !== undefined && { model }), messages: messages(sent.system, turns, urlOf), ...rest };
}

/**
 * What an assistant's turn was asked with, names of images in the place of their bytes; null for one that was imported
 * without it.
 */
export function bodyOf(pane: Pane, turn: Turn): Fields | null {
  return turn.sent ? body(turn.sent, pathTo(pane, turn.parent), urlInCode) : null;
}

/** A text alone; where there are images, parts: a model reads them before what is asked about them. */
function userContent(turn: Turn, urlOf: UrlOf): string | Fields[] {
  const urls = (turn.images ?? []).map(urlOf).filter((url) => url !== null);
  if (!urls.length) return turn.content;
  const parts: Fields[] = urls.map((url) => ({ type: "image_url", image_url: { url } }));
  if (turn.content.trim()) parts.push({ type: "text", text: turn.content });
  return parts;
}

/** Whether a body has images; nothing else is sent in parts. */
export const hasImages = (body: Fields): boolean =>
  (body.messages as Fields[]).some(({ content }) => Array.isArray(content));

export function messages(system: string, turns: Turn[], urlOf: UrlOf): Fields[] {
  const list: Fields[] = system.trim() ? [{ role: "system", content: system }] : [];
  for (const turn of turns) {
    if (turn.role === "tool") list.push({ role: "tool", tool_call_id: turn.toolCallId, content: turn.content });
    else if (turn.role === "user") list.push({ role: "user", content: userContent(turn, urlOf) });
    else if (turn.toolCalls?.length) {
      const calls = turn.toolCalls.map(({ id, name, arguments: text }) => ({
        id,
        type: "function",
        function: { name, arguments: text },
      }));
      list.push({ role: "assistant", content: turn.content || null, tool_calls: calls });
    } else if (turn.content || !turn.failure) list.push({ role: "assistant", content: turn.content });
  }
  return list;
}

/** The tools typed: an array of OpenAI's tools, or of bare functions. Throws FieldError. */
export function parseTools(typed: string): Fields[] {
  if (!typed.trim()) return [];
  const parsed = json("tools", "Tools", typed);
  const list = Array.isArray(parsed) ? parsed : [parsed];
  return list.map((item: unknown) => {
    const tool = item as { type?: unknown; name?: unknown; function?: { name?: unknown } } | null;
    if (typeof tool === "object" && tool !== null) {
      if (typeof tool.name === "string") return { type: "function", function: tool };
      if (tool.type !== undefined) {
        if (tool.type === "function" && typeof tool.function?.name !== "string") {
          throw new FieldError("tools", 'Tools: a function has a "name"');
        }
        return tool as Fields;
      }
    }
    throw new FieldError("tools", 'Tools: an array of {"type": "function", "function": {"name": …, "parameters": …}}');
  });
}

/** `tool_choice` of the settings: auto, none, required or the name of a function. */
function toolFields(values: Record<string, string>): Fields {
  const choice = values.tool_choice ?? "";
  const fields: Fields = {};
  if (choice) {
    const mode = ["auto", "none", "required"].includes(choice);
    fields.tool_choice = mode ? choice : { type: "function", function: { name: choice } };
  }
  if (values.parallel_tool_calls === "false") fields.parallel_tool_calls = false;
  return fields;
}

/** The chosen format; free text where an imported conversation names one that there is not. */
export function formatOf(values: Record<string, string>): Format {
  const format = values.format ?? "text";
  return Object.hasOwn(FORMATS, format) ? (format as Format) : "text";
}

/** What holds the output to a form. Throws FieldError. */
export function formatFields(values: Record<string, string>): Fields {
  const format = formatOf(values);
  const typed = values[`format.${format}`] ?? "";
  if (format === "text") return {};
  if (format === "json_object") return { response_format: { type: "json_object" } };
  const name = `format.${format}`;
  if (!typed.trim()) throw new FieldError(name, "Output format: nothing is typed for it");
  switch (format) {
    case "json_schema": {
      const schema = json(name, "JSON Schema", typed);
      if (typeof schema !== "object" || schema === null || Array.isArray(schema)) {
        throw new FieldError(name, "JSON Schema: an object");
      }
      return { response_format: { type: "json_schema", json_schema: { name: "output", schema, strict: true } } };
    }
    case "regex":
      return { guided_regex: typed };
    case "choice":
      return { guided_choice: linesOf(typed) };
    case "grammar":
      return { guided_grammar: typed };
  }
}
