/** The models and adapters of `/v1/models`. No field of it says that a model takes images: a request does. */

import { fetchWithKey, keysGiven } from "../../state/auth";
import { createStore } from "../../state/store";
import { change, currentId, find } from "./conversations";

export interface Model {
  id: string;
  /** Of an adapter: its model. */
  parent: string | null;
  max_model_len: number | null;
}

export const models = createStore<Model[]>([]);
/** Why there are none, in words. */
export const modelsProblem = createStore<string>("");

const AGAIN = 5000; // milliseconds
let timer: ReturnType<typeof setTimeout> | undefined;
let loads = 0;

export async function loadModels(): Promise<void> {
  clearTimeout(timer);
  const load = ++loads;
  try {
    const response = await fetchWithKey("/v1/models");
    if (load !== loads) return; // asked again meanwhile, with another key
    if (response.status === 401) return modelsProblem.set("An API key is needed.");
    if (!response.ok) throw new Error(`The list of models could not be read (${response.status}).`);
    const list = (await response.json()) as { data: { id: string; parent?: string | null; max_model_len?: number }[] };
    models.set(
      list.data.map((one) => ({ id: one.id, parent: one.parent ?? null, max_model_len: one.max_model_len ?? null })),
    );
    modelsProblem.set(list.data.length ? "" : "No model is served yet.");
  } catch (error) {
    if (load !== loads) return;
    modelsProblem.set(error instanceof TypeError ? "The service cannot be reached." : (error as Error).message);
  }
  if (!models.get().length) timer = setTimeout(loadModels, AGAIN);
  chooseFirst();
}

/** A conversation that has no model yet, or has said nothing and names one that is gone, takes the first. */
export function chooseFirst(): void {
  const first = models.get()[0]?.id;
  const shown = find(currentId.get());
  if (!first || !shown) return;
  const known = new Set(models.get().map((one) => one.id));
  const fits = shown.panes.every((pane) => known.has(pane.model) || (pane.model && pane.leaf !== null));
  if (fits) return;
  change(
    shown.id,
    (one) => ({
      ...one,
      panes: one.panes.map((pane) =>
        known.has(pane.model) || (pane.leaf !== null && pane.model) ? pane : { ...pane, model: first },
      ),
    }),
    false,
  );
}

keysGiven.subscribe(() => void loadModels());
