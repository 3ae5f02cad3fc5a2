import { expect, test } from "vitest";
import { FieldError, GROUPS, parseField } from "../src/chat/model/fields";
import { bodyOf, formatFields, hasImages, messages, parseTools, requestFields } from "../src/chat/model/request";
import type { Settings } from "../src/chat/model/types";
import { pane, turn } from "./support";

const settings = (values: Record<string, string> = {}, more: Partial<Settings> = {}): Settings => ({
  values,
  tools: "",
  tokens: false,
  ...more,
});

test("only what was changed is sent", () => {
  expect(requestFields("m", settings())).toEqual({
    model: "m",
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  });
  const fields = requestFields(
    "m",
    settings({ temperature: "0", stop: "a\n\nb", skip_special_tokens: "false", stop_token_ids: "1, 2" }),
  );
  expect(fields).toMatchObject({
    temperature: 0,
    stop: ["a", "b"],
    skip_special_tokens: false,
    stop_token_ids: [1, 2],
  });
  expect(fields).not.toHaveProperty("top_p");
});

test.each([
  ["temperature", "hot"],
  ["temperature", "-1"],
  ["top_p", "1.5"],
  ["n", "1.5"],
  ["logit_bias", "{"],
  ["stop_token_ids", "1, x"],
])("%s is not sent as %s", (name, typed) => {
  expect(() => parseField(name, typed)).toThrow(FieldError);
});

test("numbers as they are typed in other countries", () => {
  expect(parseField("temperature", "0,7")).toBe(0.7);
  expect(parseField("top_p", ",95")).toBe(0.95);
  expect(parseField("presence_penalty", "-0,125")).toBe(-0.125);
  expect(parseField("temperature", "1e-3")).toBe(0.001);
  for (const [name, typed] of [["temperature", "1,000"], ["max_completion_tokens", "2,048"]] as const) {
    expect(() => parseField(name, typed)).toThrow("comma between thousands");
  }
  expect(() => parseField("max_completion_tokens", "10,5")).toThrow("not a number");
  expect(() => parseField("seed", "9223372036854775807")).toThrow("at most 9007199254740991");
});

test("a line in quotes has escapes", () => {
  expect(parseField("stop", '"\\n\\n"\n\\nabla\n"\n""\n" "\n"a" or "b"')).toEqual([
    "\n\n",
    "\\nabla",
    '"',
    '""',
    " ",
    '"a" or "b"',
  ]);
  expect(formatFields({ format: "choice", "format.choice": '"a\\tb"\nc' })).toEqual({ guided_choice: ["a\tb", "c"] });
});

test("every field has a name of its own", () => {
  const names = GROUPS.flatMap((group) => group.fields.map((field) => field.name));
  expect(new Set(names).size).toBe(names.length);
});

test("formats", () => {
  const schema = { type: "object" };
  expect(formatFields({ format: "json_schema", "format.json_schema": JSON.stringify(schema) })).toEqual({
    response_format: { type: "json_schema", json_schema: { name: "output", schema, strict: true } },
  });
  expect(formatFields({ format: "choice", "format.choice": "yes\nno\n" })).toEqual({ guided_choice: ["yes", "no"] });
  for (const unknown of ["yaml", "constructor"]) expect(formatFields({ format: unknown })).toEqual({});
  expect(formatFields({ format: "json_object" })).toEqual({ response_format: { type: "json_object" } });
  for (const typed of ["", "[1]", "{"]) {
    expect(() => formatFields({ format: "json_schema", "format.json_schema": typed })).toThrow(FieldError);
  }
});

test("tools, as OpenAI's or as bare functions", () => {
  const tool = { type: "function", function: { name: "f", parameters: {} } };
  expect(parseTools(JSON.stringify([tool]))).toEqual([tool]);
  expect(parseTools(JSON.stringify({ name: "f", parameters: {} }))).toEqual([tool]);
  for (const wrong of ["[1]", "[{}]", '[{"type": "function"}]', "x"])
    expect(() => parseTools(wrong)).toThrow(FieldError);
  const fields = requestFields(
    "m",
    settings({ tool_choice: "f", parallel_tool_calls: "false" }, { tools: JSON.stringify([tool]) }),
  );
  expect(fields).toMatchObject({
    tools: [tool],
    tool_choice: { type: "function", function: { name: "f" } },
    parallel_tool_calls: false,
  });
  expect(requestFields("m", settings({ tool_choice: "required" }))).not.toHaveProperty("tool_choice");
});

test("messages: system, calls and their results; a turn that failed with nothing is left out", () => {
  const calls = [{ id: "c1", name: "f", arguments: "{}" }];
  const failure = { title: "", message: "", code: null, param: null, status: 500, requestId: null };
  const turns = [
    turn("u", null),
    turn("a", "u", "assistant", { content: "", toolCalls: calls }),
    turn("t", "a", "tool", { content: "42", toolCallId: "c1" }),
    turn("b", "t", "assistant", { content: "", failure }),
  ];
  expect(messages("Be brief.", turns, () => null)).toEqual([
    { role: "system", content: "Be brief." },
    { role: "user", content: "text of u" },
    {
      role: "assistant",
      content: null,
      tool_calls: [{ id: "c1", type: "function", function: { name: "f", arguments: "{}" } }],
    },
    { role: "tool", tool_call_id: "c1", content: "42" },
  ]);
});

test("images are parts before the text; those without a file are left out", () => {
  const image = (name: string) => ({ name, type: "image/png", bytes: 8 });
  const images = [image("a.png"), image("b.png")];
  const url = ({ name }: { name: string }) => (name === "a.png" ? "data:image/png;base64,AAAA" : null);
  const content = (more: object, urlOf = url) => messages("", [turn("u", null, "user", more)], urlOf)[0]!.content;
  const part = { type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } };
  expect(content({ images })).toEqual([part, { type: "text", text: "text of u" }]);
  expect(content({ images, content: " " })).toEqual([part]);
  expect(content({ images }, () => null)).toBe("text of u");
  expect(content({ images: [] })).toBe("text of u");
});

test("code has names in the place of bytes", () => {
  const sent = { system: "", fields: { model: "m" } };
  const images = [{ name: "it's.png", type: "image/png", bytes: 8 }];
  const of = pane(turn("u", null, "user", { images }), turn("a", "u", "assistant", { sent }));
  const body = bodyOf(of, of.turns.a!)!;
  expect(hasImages(body)).toBe(true);
  expect(JSON.stringify(body)).toContain("data:image/png;base64,<it's.png>");
  expect(hasImages({ messages: [{ role: "user", content: "text" }] })).toBe(false);
});

test("what a turn was asked with is what stood before it then", () => {
  const sent = { system: "", fields: { model: "m", stream: true } };
  const of = pane(turn("u", null), turn("a", "u", "assistant", { sent }), turn("u2", "a"));
  expect(bodyOf(of, of.turns.a!)).toEqual({
    model: "m",
    messages: [{ role: "user", content: "text of u" }],
    stream: true,
  });
  expect(bodyOf(of, of.turns.u!)).toBeNull();
});
