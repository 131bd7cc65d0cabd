/** How far a job is, from what was measured. Pure. */

import type { Job } from './records';

/** Seconds until its last step at its present rate; `null` where steps or rate are unknown. */
export function secondsLeft(job: Job): number | null {
  const { steps, steps_per_second_alone, steps_per_second_shared } = job.measured;
  const rate = steps_per_second_shared ?? steps_per_second_alone;
  if (job.request.steps === null || job.state !== 'running' || !rate) {
    return null;
  }
  return Math.max(0, job.request.steps - steps) / rate;
}

/** The share of its steps that a job has done; `null` where it never said how many. */
export function shareDone(job: Job): number | null {
  return job.request.steps === null ? null : Math.min(1, job.measured.steps / job.request.steps);
}

/** The prediction that holds for the device the job is on; the first one where it is on none. */
export function predictionOf(job: Job): Job['predictions'][string] | null {
  const uuid = job.lease?.slots[0]?.device_uuid;
  const granted = uuid === undefined ? undefined : job.predictions[uuid];
  return granted ?? (uuid === undefined ? Object.values(job.predictions)[0] : undefined) ?? null;
}

/** Seconds from submission to the grant, or to `now` while it waits. */
export function waited(job: Job, now: number): number {
  return Math.max(0, (job.granted_at ?? job.ended_at ?? now) - job.submitted_at);
}

/** Seconds that it ran; `null` where it never started. */
export function ran(job: Job, now: number): number | null {
  const from = job.started_at ?? job.granted_at;
  return from === null ? null : Math.max(0, (job.ended_at ?? now) - from);
}
