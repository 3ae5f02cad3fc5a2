import { CopyButton } from "../components/copy";
import type { Failure } from "./model/types";

/** An error in words, with its code and the id of the request. */
export function FailureBox({ failure }: { failure: Failure }) {
  return (
    <div class="failure">
      <strong>{failure.title}</strong>
      <p>{failure.message}</p>
      <dl>
        {failure.status !== null && <Row name="Status" value={String(failure.status)} />}
        {failure.code && <Row name="Code" value={failure.code} />}
        {failure.param && <Row name="Field" value={failure.param} />}
        {failure.requestId && <Row name="Request id" value={failure.requestId} copy />}
      </dl>
    </div>
  );
}

function Row({ name, value, copy }: { name: string; value: string; copy?: boolean }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd class="mono">
        {value}
        {copy && <CopyButton text={value} label={`Copy the ${name.toLowerCase()}`} />}
      </dd>
    </div>
  );
}
