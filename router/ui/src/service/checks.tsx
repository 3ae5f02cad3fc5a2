import { useState } from "preact/hooks";
import { Panel } from "../components/panel";
import { statusOf, useService } from "./use_service";

interface Item {
  name: string;
  status: "PASS" | "WARNING" | "FAILED";
  detail?: string;
}

interface Report {
  pod: string;
  pass?: number;
  warning?: number;
  failed?: number;
  items?: Item[];
}

const BADGES = { PASS: "ok", WARNING: "warn", FAILED: "bad" };
const RANK = { FAILED: 0, WARNING: 1, PASS: 2 };

/** What `blade_llm_check` found in each pod, those with something to say first. */
export function Checks() {
  const service = useService();
  const reports: Report[] = statusOf(service).preflight ?? [];
  const off = service?.object.spec.check?.mode === "Off";
  const sorted = [...reports].sort((a, b) => (b.failed ?? 0) - (a.failed ?? 0) || (b.warning ?? 0) - (a.warning ?? 0));
  return (
    <Panel title="Checks" note={sorted.length ? summary(sorted) : undefined}>
      {sorted.length ? (
        <div class="checks">
          {sorted.map((report, index) => (
            <Pod key={report.pod} report={report} open={index === 0} />
          ))}
        </div>
      ) : (
        <p class="panel-empty">{off ? "spec.check.mode is Off." : "No pod has finished its check yet."}</p>
      )}
    </Panel>
  );
}

function summary(reports: Report[]): string {
  const sum = (key: "failed" | "warning" | "pass") => reports.reduce((all, each) => all + (each[key] ?? 0), 0);
  return `${sum("failed")} failed, ${sum("warning")} with a warning, ${sum("pass")} passed`;
}

function Pod({ report, open }: { report: Report; open: boolean }) {
  const [shown, setShown] = useState(open);
  const items = [...(report.items ?? [])].sort((a, b) => RANK[a.status] - RANK[b.status]);
  return (
    <details open={shown} onToggle={(event) => setShown(event.currentTarget.open)}>
      <summary>
        <span class="mono breaks">{report.pod}</span>
        <span class="badges">
          {!!report.failed && <span class="badge bad">{report.failed} failed</span>}
          {!!report.warning && <span class="badge warn">{report.warning} warning</span>}
          {!!report.pass && <span class="badge ok">{report.pass} passed</span>}
        </span>
      </summary>
      {shown && (
        <ul class="check-items">
          {items.map((item) => (
            <li key={item.name}>
              <span class={`badge ${BADGES[item.status] ?? ""}`}>{item.status}</span>
              <span class="mono">{item.name}</span>
              <span class="check-detail">{item.detail}</span>
            </li>
          ))}
        </ul>
      )}
    </details>
  );
}
