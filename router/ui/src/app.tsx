import { useEffect } from "preact/hooks";
import { Chat } from "./chat";
import { Header } from "./components/header";
import { KeyDialog } from "./components/key_dialog";
import { keyWanted } from "./state/auth";
import { tab, type Tab } from "./state/location";
import { useStore } from "./state/store";
import { liveState } from "./state/stream";
import { Service } from "./service";
import { Traffic } from "./traffic";

const PAGES: Record<Tab, () => preact.JSX.Element> = { chat: Chat, service: Service, traffic: Traffic };

export function App() {
  const shown = useStore(tab);
  const wanted = useStore(keyWanted);
  const name = useStore(liveState, (state) => state?.service?.object.metadata.name);
  useEffect(() => {
    document.title = name ? `${name} · BladeLLM` : "BladeLLM";
  }, [name]);
  const Page = PAGES[shown];
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          document.getElementById("main")?.focus();
        }}
      >
        Skip to content
      </a>
      <Header />
      <main id="main" tabIndex={-1} class={`page page-${shown}`}>
        <Page />
      </main>
      {wanted && <KeyDialog />}
    </>
  );
}
