/** The page's address names the conversation that is shown, `#/chat/ID`: a reload, a bookmark and Back lead to it. */

import { tab } from "../../state/location";
import { conversations, currentId, find, isEmpty, notice } from "./conversations";

const path = (id: string | null): string => (id === null ? "#/chat" : `#/chat/${encodeURIComponent(id)}`);

/** The id in an address; null where it names none. */
export function idIn(hash: string): string | null {
  const name = /^#\/?chat\/([^/?]+)/.exec(hash)?.[1];
  try {
    return name === undefined ? null : decodeURIComponent(name);
  } catch {
    return name ?? null;
  }
}

/** From the address to the conversation. */
function follow(): void {
  const id = idIn(location.hash);
  if (id === null) return;
  if (find(id)) currentId.set(id);
  else notice.set("This browser does not have the conversation of the address.");
}

/** From the conversation to the address; a new one has none of its own before its first turn. */
function write(isAnother: boolean): void {
  if (tab.get() !== "chat") return;
  const shown = find(currentId.get());
  const address = path(shown && !isEmpty(shown) ? shown.id : null);
  if (location.hash === address || (location.hash === "" && address === path(null))) return;
  if (isAnother) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

follow();
write(false);
addEventListener("hashchange", () => {
  follow();
  write(false);
});
currentId.subscribe(() => write(true));
conversations.subscribe(() => write(false));
