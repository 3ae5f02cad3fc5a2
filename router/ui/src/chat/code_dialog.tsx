import { useState } from "preact/hooks";
import { CopyButton } from "../components/copy";
import { Dialog } from "../components/dialog";
import { Tabs } from "../components/tabs";
import { apiKey } from "../state/auth";
import { useStore } from "../state/store";
import { liveState } from "../state/stream";
import { models } from "./model/models";
import { hasImages } from "./model/request";
import { asCurl, asManifest, asPython, KEY_VARIABLE } from "./model/snippets";
import type { Fields } from "./model/types";

const TABS: { id: "curl" | "python" | "manifest"; name: string }[] = [
  { id: "curl", name: "curl" },
  { id: "python", name: "Python" },
  { id: "manifest", name: "LLMService" },
];

/** A request as a command, a program, and the manifest of what answered it. */
export function CodeDialog({ body, model, onClose }: { body: Fields; model: string; onClose: () => void }) {
  const [shown, show] = useState<(typeof TABS)[number]["id"]>("curl");
  const keyed = useStore(apiKey) !== "";
  const object = useStore(liveState, (state) => state?.service?.object ?? null);
  const parent = useStore(models).find((one) => one.id === model)?.parent ?? null;
  const sent = hasImages(body) ? "What was sent, with names in place of images' base64." : "Exactly what was sent.";
  const url = `${location.origin}/v1`;
  const text = {
    curl: () => asCurl(url, body, keyed),
    python: () => asPython(url, body, keyed, model),
    manifest: () => asManifest(model, parent, object),
  }[shown]();
  return (
    <Dialog title="This request as code" onClose={onClose} wide>
      <Tabs label="Languages" tabs={TABS} shown={shown} onShow={show}>
        <div class="code">
          <div class="code-head">
            <span>{shown === "manifest" ? "yaml" : shown === "python" ? "python" : "shell"}</span>
            <CopyButton text={text} label="Copy the code" />
          </div>
          <pre tabIndex={0}>
            <code>{text}</code>
          </pre>
        </div>
        <p class="muted">
          {shown === "manifest"
            ? "The service that answers it, for kubectl apply. Sampling fields are of the request, not of the service."
            : keyed
              ? `${sent} The key stands in the environment as ${KEY_VARIABLE}.`
              : `${sent} No API key was used.`}
        </p>
      </Tabs>
    </Dialog>
  );
}
