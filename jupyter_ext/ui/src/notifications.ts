/** What is worth interrupting somebody for. Pure. */

import type { Words } from './context';
import { duration } from './format';
import { ran, waited } from './progress';
import type { Job } from './records';
import { hasEnded } from './records';

export interface Message {
  readonly text: string;
  readonly type: 'success' | 'info' | 'warning' | 'error';
}

/** A grant that comes sooner than this is no news. */
const NOTICED_WAIT_SECONDS = 5;
/** Nor is the end of so short a run. */
const NOTICED_RUN_SECONDS = 60;

/** The message for a job of mine that passed from one state to another; `null` for none. */
export function notificationOf(before: Job, now: Job, trans: Words): Message | null {
  const name = now.request.name;
  const at = now.ended_at ?? now.granted_at ?? now.submitted_at;
  if (before.state === 'queued' && (now.state === 'granted' || now.state === 'running')) {
    const seconds = waited(now, at);
    return seconds < NOTICED_WAIT_SECONDS
      ? null
      : {
          text: trans.__('%1 has its slot after %2.', name, duration(seconds)),
          type: 'success'
        };
  }
  if (now.state === 'suspect') {
    return {
      text: trans.__('%1 has not been heard of for a while; its slot is kept.', name),
      type: 'warning'
    };
  }
  if (!hasEnded(now.state)) {
    return null;
  }
  if (now.state === 'done') {
    const seconds = ran(now, at);
    return seconds === null || seconds < NOTICED_RUN_SECONDS
      ? null
      : { text: trans.__('%1 is done after %2.', name, duration(seconds)), type: 'success' };
  }
  if (now.state === 'cancelled') {
    return null;
  }
  const why = now.outcome === '' ? '' : ` ${now.outcome}`;
  return now.state === 'rejected'
    ? { text: trans.__('%1 was rejected.', name) + why, type: 'error' }
    : now.state === 'lost'
      ? { text: trans.__('%1 was lost: its process is gone.', name) + why, type: 'error' }
      : { text: trans.__('%1 failed.', name) + why, type: 'error' };
}
