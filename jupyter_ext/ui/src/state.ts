/**
 * What the interface knows, and how each message changes it. Pure: no socket, no clock.
 */

import type { ApiError } from './api';
import type { BrokerEvent, DeviceState, HealthReport, History, Job } from './records';
import { hasEnded, holds } from './records';

/** How the interface hears from the broker. */
export type Connection =
  | { readonly kind: 'paused' }
  | { readonly kind: 'connecting' }
  | { readonly kind: 'live' }
  /** No WebSocket gets through; the broker is asked every few seconds. */
  | { readonly kind: 'polling'; readonly seconds: number }
  | { readonly kind: 'lost'; readonly error: ApiError };

/** One look at a device's utilization; `null` where it was unknown. */
export interface UsePoint {
  readonly at: number;
  readonly utilization: number | null;
}

export interface BrokerState {
  readonly connection: Connection;
  /** The last message's number, to resume from. */
  readonly sequence: number | null;
  /** The broker's clock minus this page's, seconds. */
  readonly clockSkew: number;
  /** `null` until the broker has told of them. */
  readonly devices: readonly DeviceState[] | null;
  readonly jobs: ReadonlyMap<string, Job>;
  /** The utilization of each device over the last minutes, oldest first. */
  readonly uses: ReadonlyMap<string, readonly UsePoint[]>;
  /** The colour of each resident: a number that it keeps while it stays. */
  readonly colours: ReadonlyMap<string, number>;
  readonly history: History | null;
  readonly health: HealthReport | null;
  /** Whose page this is; `null` where the server does not say: it then has one owner, me. */
  readonly owner: string | null;
}

export const INITIAL_STATE: BrokerState = {
  connection: { kind: 'connecting' },
  sequence: null,
  clockSkew: 0,
  devices: null,
  jobs: new Map(),
  uses: new Map(),
  colours: new Map(),
  history: null,
  health: null,
  owner: null
};

/** How far back the utilization of a device is kept. */
export const USE_SECONDS = 15 * 60;
/** Colours that the style sheet knows. */
export const COLOURS = 8;
const ENDED_KEPT = 50;

/** The state after one message that came at `pageNow`, in seconds of this page's clock. */
export function apply(state: BrokerState, event: BrokerEvent, pageNow: number): BrokerState {
  const next = {
    ...state,
    sequence: event.sequence,
    clockSkew: event.at - pageNow
  };
  switch (event.kind) {
    case 'snapshot':
      return {
        ...next,
        jobs: new Map(event.jobs.map(job => [job.id, job])),
        ...withDevices(state, event.devices, event.at)
      };
    case 'devices':
      return { ...next, ...withDevices(state, event.devices, event.at) };
    case 'job':
      return event.job === null ? next : { ...next, jobs: withJob(state.jobs, event.job) };
  }
}

function withJob(jobs: ReadonlyMap<string, Job>, job: Job): ReadonlyMap<string, Job> {
  const known = jobs.get(job.id);
  if (known !== undefined && known.revision > job.revision) {
    return jobs;
  }
  const next = new Map(jobs);
  next.set(job.id, job);
  const ended = [...next.values()].filter(other => hasEnded(other.state));
  if (ended.length > ENDED_KEPT) {
    ended.sort((a, b) => (a.ended_at ?? 0) - (b.ended_at ?? 0));
    for (const old of ended.slice(0, ended.length - ENDED_KEPT)) {
      next.delete(old.id);
    }
  }
  return next;
}

function withDevices(
  state: BrokerState,
  devices: readonly DeviceState[],
  at: number
): Pick<BrokerState, 'devices' | 'uses' | 'colours'> {
  const uses = new Map<string, readonly UsePoint[]>();
  for (const { device, reading } of devices) {
    const before = state.uses.get(device.uuid) ?? [];
    const last = before.at(-1);
    const readAt = reading?.read_at ?? at;
    const fresh =
      last === undefined || readAt > last.at
        ? [...before, { at: readAt, utilization: reading?.utilization ?? null }]
        : before;
    uses.set(
      device.uuid,
      fresh.filter(point => point.at >= readAt - USE_SECONDS)
    );
  }
  return { devices, uses, colours: recolour(state.colours, devices) };
}

/** Residents keep their colours; a new one takes the lowest that is free. */
function recolour(
  before: ReadonlyMap<string, number>,
  devices: readonly DeviceState[]
): ReadonlyMap<string, number> {
  const ids = new Set(devices.flatMap(device => device.residents.map(each => each.job_id)));
  const colours = new Map([...before].filter(([id]) => ids.has(id)));
  for (const id of ids) {
    if (!colours.has(id)) {
      const taken = new Set(colours.values());
      let colour = 0;
      while (taken.has(colour)) {
        colour += 1;
      }
      colours.set(id, colour);
    }
  }
  return colours;
}

/** Whether a job belongs to whoever looks at this page. */
export function isMine(state: BrokerState, owner: string): boolean {
  return state.owner === null || state.owner === owner;
}

/** The jobs that wait, in the queue's order. */
export function queue(state: BrokerState): readonly Job[] {
  return [...state.jobs.values()]
    .filter(job => job.state === 'queued')
    .sort(
      (a, b) =>
        (a.reason?.position ?? Infinity) - (b.reason?.position ?? Infinity) ||
        a.submitted_at - b.submitted_at
    );
}

/** My jobs that have not ended: those that hold a slot, then those that wait. */
export function myJobs(state: BrokerState): readonly Job[] {
  const mine = [...state.jobs.values()].filter(job => holds(job.state) && isMine(state, job.owner));
  mine.sort((a, b) => (a.granted_at ?? 0) - (b.granted_at ?? 0));
  return [...mine, ...queue(state).filter(job => isMine(state, job.owner))];
}

/** Whether the host's CPU stands in for the GPUs that are not there. */
export function withoutGpu(devices: readonly DeviceState[]): boolean {
  return devices.length > 0 && devices.every(({ device }) => device.kind === 'cpu');
}
