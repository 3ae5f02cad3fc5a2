import { createStore, useStore } from "../state/store";

export const announced = createStore("");

let waiting: string[] = [];

/** Has a screen reader say it, when it has finished what it says now. */
export function announce(text: string): void {
  announced.set("");
  waiting.push(text);
  if (waiting.length > 1) return; // two models that end at once are both heard
  setTimeout(() => {
    announced.set(waiting.join(" "));
    waiting = [];
  }, 50); // the same words twice are said twice
}

export function Announcer() {
  return (
    <div class="offscreen" role="status" aria-live="polite" aria-atomic="true">
      {useStore(announced)}
    </div>
  );
}
