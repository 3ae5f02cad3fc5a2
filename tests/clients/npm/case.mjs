// What each client's program needs: where the server is, and its cases, of which it prints one JSON line each,
// as programs/case.py does in Python.

import { readFileSync } from "node:fs";

export const BASE_URL = process.env.BASE_URL ?? "http://127.0.0.1:8080/v1";
// Without /v1, which some clients add themselves.
export const ROOT_URL = BASE_URL.replace(/\/v1$/, "");
export const MODEL = process.env.MODEL ?? "demo-model";
// Any text will do, as the server asks for no keys.
export const API_KEY = process.env.API_KEY ?? "none";
// A prompt for completions, which the demo model answers with a wide margin: a stream and a whole answer are alike.
export const TURN = "<|im_start|>user\nWhat does len do?<|im_end|>\n<|im_start|>assistant\n";

class Client {
  cases = new Map();

  constructor(name, distribution) {
    this.name = name;
    this.distribution = distribution;
  }

  // Add a case: a function, which may be async, that asserts what a user would rely on and returns a short text to show.
  case(name, run) {
    this.cases.set(name, run);
  }

  // Run the cases named on the command line, or all; the exit status is 1 if any failed.
  async main() {
    const named = process.argv.slice(2);
    for (const name of named.length ? named : this.cases.keys()) {
      const started = performance.now();
      let shown = "";
      let error = "";
      try {
        const run = this.cases.get(name);
        if (run === undefined) throw new Error(`no case is named ${name}`);
        shown = String(await run());
      } catch (failure) {
        error = failure?.stack ?? String(failure); // the other cases still run
        process.exitCode = 1;
      }
      const seconds = Math.round((performance.now() - started) / 10) / 100;
      const line = { client: this.name, version: version(this.distribution), case: name, shown: shown.slice(0, 200) };
      console.log(JSON.stringify({ ...line, error, seconds }));
    }
  }
}

// A client by its name in the table of docs/clients.md, and the package whose version is shown there.
export function client(name, distribution) {
  return new Client(name, distribution);
}

// A library may hide its package.json from imports, but not from a read.
function version(distribution) {
  return JSON.parse(readFileSync(new URL(`node_modules/${distribution}/package.json`, import.meta.url))).version;
}
