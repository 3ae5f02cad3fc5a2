import { ofThisTab } from "./browser_storage";
import { createStore } from "./store";

const NAME = "blade.key";

/** The API key of this browser tab: gone when it closes. */
export const apiKey = createStore<string>(ofThisTab.getItem(NAME) ?? "");
/** Counts the keys that were given: the same one again is another attempt. */
export const keysGiven = createStore(0);
/** The service wants a key, or another one. */
export const keyWanted = createStore(false);

export function setApiKey(key: string): void {
  if (key) ofThisTab.setItem(NAME, key);
  else ofThisTab.removeItem(NAME);
  keyWanted.set(false);
  apiKey.set(key);
  keysGiven.set(keysGiven.get() + 1);
}

/** Why this cannot be a key, in words, or null: browsers send nothing else in a header. */
export const keyProblem = (key: string): string | null =>
  /^[\x21-\x7e]*$/.test(key) ? null : "A key has letters, digits and punctuation of ASCII only, and no spaces.";

/** `fetch` with the key; a 401 makes the page ask for one. */
export async function fetchWithKey(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  const key = apiKey.get();
  if (key) headers.set("authorization", `Bearer ${key}`);
  const response = await fetch(path, { ...init, headers });
  if (response.status === 401 && key === apiKey.get()) keyWanted.set(true);
  return response;
}
