import { apiKey, keyWanted } from "../state/auth";
import { TABS, tab } from "../state/location";
import { useStore } from "../state/store";
import { connection, type Connection, liveState } from "../state/stream";
import { setTheme, type Theme, theme } from "../state/theme";
import { Announcer } from "./announce";
import { IconButton } from "./button";
import type { IconName } from "./icons";

const TITLES = { chat: "Chat", service: "Service", traffic: "Traffic" };
const CONNECTIONS: Record<Connection, [string, string]> = {
  connecting: ["Connecting", "Opening the stream of live data"],
  open: ["Live", "Live data comes once a second"],
  waiting: ["Reconnecting", "The router cannot be reached, or has too many viewers; what is shown may be old"],
  unauthorized: ["API key needed", "Live data needs an API key"],
  off: ["No live data", "This router sends no live data"],
};
const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };
const ICONS: Record<Theme, IconName> = { system: "display", light: "sun", dark: "moon" };

export function Header() {
  const shown = useStore(tab);
  const chosen = useStore(theme);
  const keyed = useStore(liveState, (state) => state?.router.keyed ?? false);
  const hasKey = useStore(apiKey) !== "";
  const refused = useStore(connection) === "unauthorized";
  return (
    <header class="top">
      <ServiceName />
      <nav aria-label="Pages">
        {TABS.map((name) => (
          <a key={name} href={`#/${name}`} aria-current={shown === name ? "page" : undefined}>
            {TITLES[name]}
          </a>
        ))}
      </nav>
      <div class="top-end">
        <ConnectionState />
        {(keyed || hasKey || refused) && (
          <IconButton
            label={hasKey ? "Change the API key" : "Enter an API key"}
            icon="key"
            onClick={() => keyWanted.set(true)}
          />
        )}
        <IconButton
          label={`Theme: ${chosen}. Switch to ${NEXT[chosen]}`}
          icon={ICONS[chosen]}
          onClick={() => setTheme(NEXT[chosen])}
        />
      </div>
      <Announcer />
    </header>
  );
}

function ServiceName() {
  const name = useStore(liveState, (state) => state?.service?.object.metadata.name);
  const namespace = useStore(liveState, (state) => state?.service?.object.metadata.namespace);
  return (
    <h1 class="service-name" title={name ? `LLMService ${name} in ${namespace}` : "BladeLLM"}>
      <span class="logo" aria-hidden="true" />
      <span class="name">{name ?? "BladeLLM"}</span>
      {namespace && <span class="namespace">{namespace}</span>}
    </h1>
  );
}

function ConnectionState() {
  const state = useStore(connection);
  const [text, title] = CONNECTIONS[state];
  return (
    <span class={`connection ${state}`} title={title} role="status">
      <span class="dot" aria-hidden="true" />
      <span class="connection-text">{text}</span>
    </span>
  );
}
