import { CopyButton } from "../components/copy";
import { statusOf, useService } from "./use_service";

interface Failure {
  pod: string;
  container?: string;
  reason?: string;
  exitCode?: number;
  restarts?: number;
  message?: string;
  lastLog?: string;
}

/** What fails, causes first, with the last line that the container left. */
export function Failures() {
  const service = useService();
  const failures: Failure[] = statusOf(service).failures ?? [];
  if (!failures.length) return null;
  return (
    <ul class="pod-failures" aria-label="Failures">
      {failures.map((failure) => (
        <li key={`${failure.pod}/${failure.container}`} class="pod-failure">
          <p class="failure-head">
            <span class="badge bad">{failure.reason || "Failed"}</span>
            <span class="mono breaks">{[failure.pod, failure.container].filter(Boolean).join(" / ")}</span>
            <span class="muted">{end(failure)}</span>
          </p>
          {failure.message && <p>{failure.message}</p>}
          {failure.lastLog && (
            <div class="last-line">
              <pre tabIndex={0} role="region" aria-label="Last line of the container">
                {failure.lastLog}
              </pre>
              <CopyButton text={failure.lastLog} label="Copy the last line" />
            </div>
          )}
        </li>
      ))}
    </ul>
  );
}

function end({ exitCode, restarts }: Failure): string {
  const parts = [];
  if (exitCode) parts.push(`exit ${exitCode}`);
  if (restarts) parts.push(`${restarts} restart${restarts === 1 ? "" : "s"}`);
  return parts.join(", ");
}
