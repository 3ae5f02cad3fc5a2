/** `x-blade-route-reason` in words: docs/routing.md says what the parts mean. */

export interface Fact {
  name: string;
  value: string;
}

/** Name of the policy, and what it went by. Words that are not known stay as they are. */
export function explainReason(reason: string): { policy: string; facts: Fact[] } {
  const words = reason.split(" ").filter(Boolean);
  const facts: Fact[] = [];
  let policy = "";
  for (const word of words) {
    const [key = "", value] = splitOnce(word);
    if (value === null) {
      if (key === "home") facts.push({ name: "New prompt", value: "this router's home engine for it" });
      else if (key === "panic") facts.push({ name: "Panic", value: "no engine was healthy" });
      else policy = policy ? `${policy} ${key}` : key;
      continue;
    }
    if (value !== "0/0") facts.push(fact(key, value)); // a prompt shorter than a block
  }
  return { policy, facts };
}

/** One or two words for a row of a table. */
export function shortReason(reason: string | null): string {
  if (!reason) return "";
  const { policy, facts } = explainReason(reason);
  const chosen = facts.find((each) => each.name === "Revision") ?? facts.find((each) => each.name === "Cached blocks");
  return chosen ? `${policy} · ${chosen.value}` : policy;
}

function splitOnce(word: string): [string, string | null] {
  const at = word.indexOf("=");
  return at < 0 ? [word, null] : [word.slice(0, at), word.slice(at + 1)];
}

function fact(key: string, value: string): Fact {
  switch (key) {
    case "prefix":
      return { name: "Cached blocks", value: value.replace("/", " of ") };
    case "in_flight":
      return { name: "In flight there", value };
    case "ms":
      return { name: "Cost", value: `${value} ms` };
    case "rev":
      return { name: "Revision", value };
    case "adapter":
      return { name: "Adapter factor", value };
    case "skipped":
      return { name: "Busy engines passed over", value };
    case "retry":
      return { name: "Retried after", value };
    case "key":
      return { name: "Hashed", value };
    default:
      return { name: key, value };
  }
}
