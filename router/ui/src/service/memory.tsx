import { Panel } from "../components/panel";
import { count, DASH } from "../state/format";
import { statusOf, useService } from "./use_service";

const PARTS: [string, string][] = [
  ["Weights", "weights"],
  ["Draft model", "draft"],
  ["Activations", "activations"],
  ["CUDA graphs", "graphs"],
  ["KV cache", "kvCache"],
];

/** Where an engine's memory goes, as it measured it itself. */
export function Memory() {
  const fit = statusOf(useService()).fit;
  if (!fit) return null;
  return (
    <Panel title="Memory of an engine" note={fit.ranks ? `each of ${fit.ranks} ranks` : "measured"}>
      <dl class="numbers">
        {PARTS.filter(([, key]) => fit[key]).map(([name, key]) => (
          <div key={key}>
            <dt>{name}</dt>
            <dd>{fit[key].replace(/([KMGT]i)$/, " $1B")}</dd>
          </div>
        ))}
      </dl>
      <p class="panel-text">
        The KV cache holds {fit.kvTokens ? count(fit.kvTokens) : DASH} tokens: {fit.concurrency || DASH} requests of{" "}
        {fit.contextLength ? count(fit.contextLength) : DASH} tokens at once.
      </p>
    </Panel>
  );
}
