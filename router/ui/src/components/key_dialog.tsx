import { useEffect, useRef, useState } from "preact/hooks";
import { apiKey, keyProblem, keyWanted, setApiKey } from "../state/auth";
import { useStore } from "../state/store";
import { Button } from "./button";
import { Dialog } from "./dialog";

/** Asks for the API key. It stays in this browser tab. */
export function KeyDialog() {
  const current = useStore(apiKey);
  const [key, setKey] = useState("");
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  const problem = keyProblem(key.trim());
  const close = () => keyWanted.set(false);
  return (
    <Dialog
      title="API key"
      onClose={close}
      footer={
        <>
          {current && <Button onClick={() => setApiKey("")}>Forget the key</Button>}
          <Button type="submit" kind="primary" form="api-key" disabled={!key.trim() || problem !== null}>
            Use this key
          </Button>
        </>
      }
    >
      <form
        id="api-key"
        onSubmit={(event) => {
          event.preventDefault();
          if (key.trim() && problem === null) setApiKey(key.trim());
        }}
      >
        <p>
          {current ? "Another key takes the place of the present one." : "This service needs an API key."} It is kept in
          this browser tab until you close it, and sent to this service only.
        </p>
        <label class="field">
          <span>API key</span>
          <input
            ref={input}
            type="password"
            autocomplete="off"
            spellcheck={false}
            value={key}
            aria-invalid={problem ? "true" : undefined}
            aria-describedby="api-key-problem"
            onInput={(event) => setKey(event.currentTarget.value)}
          />
        </label>
        <span id="api-key-problem" class="field-error">
          {problem}
        </span>
      </form>
    </Dialog>
  );
}
