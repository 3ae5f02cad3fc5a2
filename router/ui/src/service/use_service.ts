import { useStore } from "../state/store";
import { liveState } from "../state/stream";
import type { Service } from "../state/types";

/** The service as the operator last reported it; only for parts that are shown where there is one. */
export function useService(): Service | null {
  return useStore(liveState, (state) => state?.service ?? null);
}

/** A viewer with a key gets the service without its spec, and then without pods, events and messages as well. */
export const isPublic = (service: Service): boolean => !Object.keys(service.object.spec ?? {}).length;

/** The status's fields, of which any may be missing. */
export const statusOf = (service: Service | null): Record<string, any> => service?.object.status ?? {};
