import { execFileSync } from "node:child_process";
import { expect, test } from "vitest";
import { asCurl, asManifest, asPython } from "../src/chat/model/snippets";

const BODY = {
  model: "m",
  messages: [{ role: "user", content: 'It\'s "a" $HOME `b` \\ 😀\nnext' }],
  temperature: 0,
  top_k: 3,
  ignore_eos: true,
  tools: [
    {
      type: "function",
      function: { name: "f", parameters: { type: "object", properties: {}, additionalProperties: false } },
    },
  ],
  logit_bias: null,
  stream: true,
};

test("a shell gives curl what was sent", () => {
  const command = asCurl("http://h/v1", BODY, true).replace(/^curl/, "show");
  const show = `show() { for last; do :; done; printf '%s' "$last"; }`;
  expect(JSON.parse(execFileSync("bash", ["-c", `${show}\n${command}`], { encoding: "utf8" }))).toEqual(BODY);
  expect(command).toContain('"authorization: Bearer $API_KEY"');
  expect(asCurl("http://h/v1", BODY, false)).not.toContain("authorization");
});

test("Python gives the client what was sent", () => {
  const program = asPython("http://h/v1", BODY, true, "m").replace(
    "from openai import OpenAI",
    "import json\nclass OpenAI:\n    def __init__(self, **k): self.chat = self.completions = self\n    def create(self, extra_body, **k): print(json.dumps({**k, **extra_body})); return []",
  );
  const printed = execFileSync("python3", ["-c", program], { encoding: "utf8", env: { ...process.env, API_KEY: "k" } });
  expect(JSON.parse(printed)).toEqual(BODY);
  expect(program).toContain('api_key=os.environ["API_KEY"]');
  expect(program).toMatch(/extra_body=\{[^}]*"top_k": 3/);
});

test("the manifest is the service's own, where the operator said it", () => {
  const object = {
    apiVersion: "v",
    kind: "LLMService",
    metadata: { name: "svc", namespace: "ns", generation: 3 },
    spec: { replicas: 2, image: "" },
    status: {},
  };
  expect(asManifest("m", null, object)).toBe(
    "apiVersion: v\nkind: LLMService\nmetadata:\n  name: svc\n  namespace: ns\nspec:\n  replicas: 2\n",
  );
  expect(asManifest("polite", "Demo.1", null)).toContain("name: demo-1");
  expect(asManifest("m", null, null)).toMatch(/^# This router has no operator/);
  const secret = { ...object, spec: { router: { env: [{ name: "TOKEN", value: "…" }] } } };
  expect(asManifest("m", null, secret)).toMatch(/^# What is shown as … is hidden.*\napiVersion: v\n/);
  const restricted = asManifest("m", null, { ...object, spec: {} }); // what a key without `web_ui: all` sees
  expect(restricted).toMatch(/^# This page is not shown the service's spec/);
  expect(restricted).toContain("name: svc\n");
});
