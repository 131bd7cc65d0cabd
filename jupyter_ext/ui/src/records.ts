/**
 * The broker's records as they come over the wire: `horus_lab.records` in TypeScript.
 *
 * Sizes are bytes, utilizations fractions from 0 to 1, instants seconds since the Unix epoch.
 * `null` means unknown and is never shown as zero. What the interface does not show is left out.
 */

export interface Interval {
  readonly p10: number;
  readonly p50: number;
  readonly p90: number;
}

export type DeviceKind = 'nvidia' | 'mig' | 'cpu' | 'simulated';

export interface DeviceSpec {
  readonly model: string;
  readonly kind: DeviceKind;
  readonly memory_bytes: number;
  readonly multiprocessors: number;
}

export interface Device {
  readonly uuid: string;
  readonly name: string;
  readonly index: number;
  readonly kind: DeviceKind;
  readonly capacity_bytes: number;
  readonly margin_bytes: number;
  readonly spec: DeviceSpec;
  readonly simulated: boolean;
  readonly max_residents: number;
}

export type Health = 'ok' | 'degraded' | 'lost';

export interface DeviceReading {
  readonly uuid: string;
  readonly read_at: number;
  readonly health: Health;
  readonly utilization: number | null;
  readonly memory_utilization: number | null;
  readonly memory_used_bytes: number | null;
  /** Why each missing value is missing, by the value's name. */
  readonly unknown: Readonly<Record<string, string>>;
}

export type JobState =
  | 'queued'
  | 'granted'
  | 'running'
  | 'suspect'
  | 'fenced'
  | 'done'
  | 'failed'
  | 'cancelled'
  | 'rejected'
  | 'lost';

/** A job on a device, as everyone who may see the device sees it. */
export interface Resident {
  readonly job_id: string;
  readonly name: string;
  readonly owner: string;
  readonly notebook: string;
  readonly state: JobState;
  readonly reserved_bytes: number;
  readonly measured_bytes: number | null;
  readonly predicted_utilization: Interval | null;
  readonly measured_utilization: number | null;
  readonly slowdown: Interval | null;
  readonly measured_slowdown: number | null;
}

export interface DeviceState {
  readonly device: Device;
  readonly reading: DeviceReading | null;
  readonly reserved_bytes: number;
  readonly unmanaged_bytes: number | null;
  readonly residents: readonly Resident[];
}

export type Basis = 'model' | 'history' | 'declared' | 'unknown';

export interface Prediction {
  readonly device_model: string;
  readonly basis: Basis;
  readonly utilization: Interval | null;
  readonly memory_utilization: Interval | null;
  readonly memory_startup_bytes: Interval | null;
  readonly memory_bytes: Interval | null;
  readonly step_seconds: Interval | null;
  readonly explanation: string;
}

export interface Constraints {
  readonly exclusive: boolean;
  readonly max_slowdown: number;
  readonly priority: number;
}

export interface JobRequest {
  readonly name: string;
  readonly devices: number;
  readonly constraints: Constraints;
  readonly steps: number | null;
  readonly notebook: string;
  readonly kernel_id: string;
}

export interface Slot {
  readonly device_uuid: string;
  readonly reserved_bytes: number;
  readonly utilization: number | null;
  readonly slowdown: Interval | null;
}

export interface Lease {
  readonly fence: number;
  readonly slots: readonly Slot[];
  readonly granted_at: number;
}

export interface WaitReason {
  readonly position: number;
  readonly absent: boolean;
  readonly sentence: string;
  readonly expected_seconds: Interval | null;
}

export interface StoryEntry {
  readonly at: number;
  readonly event: string;
  readonly from_state: JobState | null;
  readonly to_state: JobState;
  readonly why: string;
  readonly event_id: string;
}

export interface Measurement {
  readonly steps: number;
  readonly steps_per_second_alone: number | null;
  readonly steps_per_second_shared: number | null;
  readonly seconds_alone: number;
  readonly seconds_shared: number;
  readonly utilization: number | null;
  readonly utilization_alone: number | null;
  readonly memory_peak_bytes: number | null;
  readonly slowdown: number | null;
}

export interface Job {
  readonly id: string;
  readonly owner: string;
  readonly request: JobRequest;
  readonly state: JobState;
  readonly revision: number;
  readonly submitted_at: number;
  /** By device UUID. */
  readonly predictions: Readonly<Record<string, Prediction>>;
  readonly lease: Lease | null;
  readonly reason: WaitReason | null;
  readonly granted_at: number | null;
  readonly started_at: number | null;
  readonly ended_at: number | null;
  readonly outcome: string;
  readonly measured: Measurement;
  readonly story: readonly StoryEntry[];
  readonly cancel_requested: boolean;
}

export interface TrackRecord {
  readonly runs: number;
  readonly memory_coverage: number | null;
  readonly memory_median_error: number | null;
  readonly utilization_coverage: number | null;
  readonly utilization_median_error: number | null;
}

export interface History {
  readonly jobs: readonly Job[];
  readonly track_record: TrackRecord;
}

export interface HealthReport {
  readonly version: string;
  readonly broker_id: string;
  readonly epoch: number;
  readonly started_at: number;
  readonly devices: number;
  readonly probe: string;
  readonly notices: readonly string[];
  readonly store: string;
}

/** One message of the event stream; `sequence` only grows. */
export interface BrokerEvent {
  readonly sequence: number;
  readonly at: number;
  readonly kind: 'snapshot' | 'job' | 'devices';
  readonly job: Job | null;
  readonly jobs: readonly Job[];
  readonly devices: readonly DeviceState[];
}

export interface ErrorReply {
  readonly code: string;
  readonly message: string;
  readonly hint: string;
}

const ENDED: ReadonlySet<JobState> = new Set<JobState>([
  'done',
  'failed',
  'cancelled',
  'rejected',
  'lost'
]);

const HOLDING: ReadonlySet<JobState> = new Set<JobState>([
  'granted',
  'running',
  'suspect',
  'fenced'
]);

/** Whether a job in this state will never change again. */
export function hasEnded(state: JobState): boolean {
  return ENDED.has(state);
}

/** Whether a job in this state holds reservations. */
export function holds(state: JobState): boolean {
  return HOLDING.has(state);
}
