import { addTurn } from "../src/chat/model/tree";
import type { Pane, Turn } from "../src/chat/model/types";

export const turn = (
  id: string,
  parent: string | null,
  role: Turn["role"] = "user",
  more: Partial<Turn> = {},
): Turn => ({
  id,
  parent,
  role,
  content: `text of ${id}`,
  created: 1,
  ...more,
});

export function pane(...turns: Turn[]): Pane {
  return turns.reduce((sum, one) => addTurn(sum, one), { model: "m", turns: {}, leaf: null } as Pane);
}
