import { NoData } from "../components/no_data";
import { useStore } from "../state/store";
import { liveState } from "../state/stream";
import { Adapters } from "./adapters";
import { Alone } from "./alone";
import { Checks } from "./checks";
import { Conditions } from "./conditions";
import { Cost } from "./cost";
import { Engines } from "./engines";
import { Events } from "./events";
import { Failures } from "./failures";
import { Facts } from "./facts";
import { Memory } from "./memory";
import { Pods } from "./pods";
import { Rollout } from "./rollout";
import { Scaling } from "./scaling";
import { ServiceHead } from "./head";
import { isPublic } from "./use_service";

/** The service at work: what the operator and this router know of it. Each part renders when what it shows changes. */
export function Service() {
  const known = useStore(liveState, (state) => state !== null);
  const managed = useStore(liveState, (state) => state?.service != null);
  const restricted = useStore(liveState, (state) => (state?.service ? isPublic(state.service) : false));
  if (!known) return <NoData title="Service" />;
  if (!managed)
    return (
      <div class="service">
        <Alone />
        <Engines />
      </div>
    );
  return (
    <div class="service">
      <ServiceHead />
      <Failures />
      <div class="service-columns">
        <div class="stack">
          <Conditions />
        </div>
        <div class="stack">
          <Rollout />
          {!restricted && <Scaling />}
          <Cost />
          <Memory />
          <Facts />
        </div>
      </div>
      <Engines />
      {!restricted && <Pods />}
      {!restricted && (
        <div class="service-columns">
          <div class="stack">
            <Checks />
          </div>
          <div class="stack">
            <Adapters />
            <Events />
          </div>
        </div>
      )}
    </div>
  );
}
