/** The tree of turns: editing, regenerating and several outputs make branches. Nothing is changed in place. */

import type { Conversation, Pane, Turn } from "./types";

export const newId = (): string =>
  Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => (byte % 36).toString(36)).join("");

export function newConversation(models: string[]): Conversation {
  const now = Date.now() / 1000;
  return {
    id: newId(),
    title: "",
    created: now,
    updated: now,
    system: "",
    settings: { values: {}, tools: "", tokens: false },
    panes: models.map((model) => ({ model, turns: {}, leaf: null })),
  };
}

/** The turns from the first one to this. */
export function pathTo(pane: Pane, id: string | null): Turn[] {
  const path: Turn[] = [];
  for (
    let turn = id === null ? undefined : pane.turns[id];
    turn;
    turn = turn.parent === null ? undefined : pane.turns[turn.parent]
  ) {
    path.push(turn);
  }
  return path.reverse();
}

export const shownTurns = (pane: Pane): Turn[] => pathTo(pane, pane.leaf);

const children = (pane: Pane, parent: string | null): Turn[] =>
  Object.values(pane.turns).filter((turn) => turn.parent === parent);

/** The branches at a turn's place, oldest first, itself among them. */
export const siblings = (pane: Pane, turn: Turn): Turn[] => children(pane, turn.parent);

/** Put a turn into the tree and show it. */
export function addTurn(pane: Pane, turn: Turn): Pane {
  return { ...pane, turns: { ...pane.turns, [turn.id]: turn }, leaf: turn.id };
}

export function replaceTurn(pane: Pane, turn: Turn): Pane {
  return pane.turns[turn.id] ? { ...pane, turns: { ...pane.turns, [turn.id]: turn } } : pane;
}

/** Show the branch of this turn, to its newest end. */
export function showBranch(pane: Pane, id: string): Pane {
  let leaf = id;
  for (let next = children(pane, leaf).at(-1); next; next = children(pane, leaf).at(-1)) leaf = next.id;
  return { ...pane, leaf };
}

/** A title from what was first said. */
export function titleOf(text: string): string {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > 48 ? `${line.slice(0, 47).trimEnd()}…` : line;
}
