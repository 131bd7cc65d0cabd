/** Records with sensible values; name what matters to the test, leave the rest. */

import type {
  BrokerEvent,
  Device,
  DeviceReading,
  DeviceState,
  Interval,
  Job,
  Resident
} from '../src/records';

export const GIB = 2 ** 30;

export function interval(p10: number, p50: number, p90: number): Interval {
  return { p10, p50, p90 };
}

export function device(changes: Partial<Device> = {}): Device {
  return {
    uuid: 'GPU-a',
    name: 'GPU 0 (A100-80GB)',
    index: 0,
    kind: 'nvidia',
    capacity_bytes: 80 * GIB,
    margin_bytes: 2 * GIB,
    spec: { model: 'A100-80GB', kind: 'nvidia', memory_bytes: 80 * GIB, multiprocessors: 108 },
    simulated: false,
    max_residents: 8,
    ...changes
  };
}

export function resident(changes: Partial<Resident> = {}): Resident {
  return {
    job_id: 'job-1',
    name: 'Tokens',
    owner: 'ana',
    notebook: 'studies/tokens.ipynb',
    state: 'running',
    reserved_bytes: 20 * GIB,
    measured_bytes: 15 * GIB,
    predicted_utilization: interval(0.3, 0.4, 0.5),
    measured_utilization: 0.42,
    slowdown: interval(1.01, 1.05, 1.1),
    measured_slowdown: null,
    ...changes
  };
}

export function reading(changes: Partial<DeviceReading> = {}): DeviceReading {
  return {
    uuid: 'GPU-a',
    read_at: 1000,
    health: 'ok',
    utilization: 0.57,
    memory_utilization: 0.2,
    memory_used_bytes: 18 * GIB,
    unknown: {},
    ...changes
  };
}

export function deviceState(changes: Partial<DeviceState> = {}): DeviceState {
  return {
    device: device(),
    reading: reading(),
    reserved_bytes: 20 * GIB,
    unmanaged_bytes: 3 * GIB,
    residents: [resident()],
    ...changes
  };
}

export function job(changes: Partial<Job> = {}): Job {
  return {
    id: 'job-1',
    owner: 'ana',
    request: {
      name: 'Tokens',
      devices: 1,
      constraints: { exclusive: false, max_slowdown: 1.25, priority: 0 },
      steps: null,
      notebook: 'studies/tokens.ipynb',
      kernel_id: 'kernel-1'
    },
    state: 'running',
    revision: 1,
    submitted_at: 900,
    predictions: {
      'GPU-a': {
        device_model: 'A100-80GB',
        basis: 'model',
        utilization: interval(0.3, 0.4, 0.5),
        memory_utilization: null,
        memory_startup_bytes: null,
        memory_bytes: interval(12 * GIB, 14 * GIB, 16 * GIB),
        step_seconds: null,
        explanation: 'From the graph.'
      }
    },
    lease: {
      fence: 7,
      slots: [{ device_uuid: 'GPU-a', reserved_bytes: 20 * GIB, utilization: 0.4, slowdown: null }],
      granted_at: 910
    },
    reason: null,
    granted_at: 910,
    started_at: 912,
    ended_at: null,
    outcome: '',
    measured: {
      steps: 0,
      steps_per_second_alone: null,
      steps_per_second_shared: null,
      seconds_alone: 0,
      seconds_shared: 0,
      utilization: 0.42,
      utilization_alone: null,
      memory_peak_bytes: 15 * GIB,
      slowdown: null
    },
    story: [],
    cancel_requested: false,
    ...changes
  };
}

export function waiting(changes: Partial<Job> = {}): Job {
  return job({
    id: 'job-2',
    state: 'queued',
    lease: null,
    granted_at: null,
    started_at: null,
    reason: {
      position: 1,
      absent: false,
      sentence: 'waits: GPU 0 lacks 14.4 GiB; expected in 9–10 min',
      expected_seconds: interval(540, 570, 600)
    },
    measured: { ...job().measured, utilization: null, memory_peak_bytes: null },
    ...changes
  });
}

export function event(changes: Partial<BrokerEvent> = {}): BrokerEvent {
  return { sequence: 1, at: 1000, kind: 'snapshot', job: null, jobs: [], devices: [], ...changes };
}
