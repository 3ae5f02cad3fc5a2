import { expect, test } from "vitest";
import {
  addTurn,
  newConversation,
  replaceTurn,
  showBranch,
  shownTurns,
  siblings,
  titleOf,
} from "../src/chat/model/tree";
import type { Pane } from "../src/chat/model/types";
import { pane, turn } from "./support";

const shown = (of: Pane) => shownTurns(of).map((one) => one.id);

test("an edited turn is a branch beside the one it was", () => {
  const before = pane(turn("u1", null), turn("a1", "u1", "assistant"), turn("u2", "a1"), turn("a2", "u2", "assistant"));
  const edited = addTurn(addTurn(before, turn("u2b", "a1")), turn("a2b", "u2b", "assistant"));
  expect(shown(edited)).toEqual(["u1", "a1", "u2b", "a2b"]);
  expect(siblings(edited, edited.turns.u2!).map((one) => one.id)).toEqual(["u2", "u2b"]);
  expect(shown(showBranch(edited, "u2"))).toEqual(["u1", "a1", "u2", "a2"]);
  expect(before.turns.u2b).toBeUndefined();
});

test("a branch is shown to its newest end", () => {
  const of = pane(
    turn("u", null),
    turn("a", "u", "assistant"),
    turn("b", "u", "assistant"),
    turn("c", "b"),
    turn("d", "b"),
  );
  expect(shown(showBranch({ ...of, leaf: "a" }, "b"))).toEqual(["u", "b", "d"]);
});

test("a turn that is not there is not put there", () => {
  const of = pane(turn("u", null));
  expect(replaceTurn(of, turn("x", "u"))).toBe(of);
  expect(replaceTurn(of, turn("u", null, "user", { content: "new" })).turns.u?.content).toBe("new");
});

test("titles are short and on one line", () => {
  expect(titleOf("  a\n b ")).toBe("a b");
  expect(titleOf("x".repeat(80))).toBe(`${"x".repeat(47)}…`);
  expect(newConversation(["a", "b"]).panes.map((one) => one.model)).toEqual(["a", "b"]);
});
