import { useEffect, useRef, useState } from "preact/hooks";
import { apiKey, keyWanted, setApiKey } from "../state/auth";
import { useStore } from "../state/store";
import { Button } from "./button";
import { Dialog } from "./dialog";

/** Asks for the API key. It stays in this browser tab. */
export function KeyDialog() {
  const current = useStore(apiKey);
  const [key, setKey] = useState("");
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  const close = () => keyWanted.set(false);
  return (
    <Dialog
      title="API key"
      onClose={close}
      footer={
        <>
          {current && <Button onClick={() => setApiKey("")}>Forget the key</Button>}
          <Button type="submit" kind="primary" form="api-key" disabled={!key.trim()}>
            Use this key
          </Button>
        </>
      }
    >
      <form
        id="api-key"
        onSubmit={(event) => {
          event.preventDefault();
          if (key.trim()) setApiKey(key.trim());
        }}
      >
        <p>
          {current ? "The service did not accept the last key, or you change it." : "This service wants an API key."}{" "}
          The key is kept in this browser tab until you close it, and sent to this service only.
        </p>
        <label class="field">
          <span>API key</span>
          <input
            ref={input}
            type="password"
            autocomplete="off"
            spellcheck={false}
            value={key}
            onInput={(event) => setKey(event.currentTarget.value)}
          />
        </label>
      </form>
    </Dialog>
  );
}
