import { CopyButton } from "../components/copy";
import { Dialog } from "../components/dialog";
import { useService } from "./use_service";
import { toYaml } from "../state/yaml";

/** The LLMService as the cluster has it, to read and to copy. */
export function YamlDialog({ onClose }: { onClose: () => void }) {
  const service = useService();
  const text = service ? toYaml(service.object) : "";
  return (
    <Dialog title="LLMService" onClose={onClose} wide>
      <div class="yaml">
        <span class="yaml-copy">
          <CopyButton text={text} label="Copy the YAML" />
        </span>
        <pre tabIndex={0} role="region" aria-label="YAML">
          {text}
        </pre>
      </div>
    </Dialog>
  );
}
