/**
 * The one way in: a WebSocket that resumes where it broke, and polling where none gets through.
 */

import type { BrokerApi } from './api';
import { ApiError } from './api';
import type { BrokerEvent } from './records';
import type { Connection } from './state';

/** What of a browser's `WebSocket` is used. */
export type Socket = Pick<WebSocket, 'onopen' | 'onmessage' | 'onclose' | 'close'>;

export interface FeedOptions {
  readonly api: BrokerApi;
  readonly openSocket: (url: string) => Socket;
  readonly onEvent: (event: BrokerEvent) => void;
  readonly onConnection: (connection: Connection) => void;
  /** A number from 0 to 1 that spreads the reconnections of many pages. */
  readonly random?: () => number;
}

/** A socket that has not opened by then will not. */
const OPEN_MS = 10_000;
/** The broker looks at its devices every second or so: silence this long is a dead connection. */
const SILENCE_MS = 90_000;
const FIRST_RETRY_MS = 1_000;
const LAST_RETRY_MS = 30_000;
export const POLL_MS = 5_000;
const SOCKET_RETRY_POLLS = 12;

type Timer = ReturnType<typeof setTimeout>;

export class EventFeed {
  private socket: Socket | null = null;
  private timer: Timer | null = null;
  private after: number | null = null;
  private failures = 0;
  private polls = 0;
  /** Grows with every start and stop, so that late answers of an earlier run are dropped. */
  private run = 0;
  private running = false;

  constructor(private readonly options: FeedOptions) {}

  /** Connect, and stay connected until `stop`. */
  start(): void {
    if (!this.running) {
      this.running = true;
      this.failures = 0;
      this.options.onConnection({ kind: 'connecting' });
      this.connect();
    }
  }

  /** Close; the next start resumes after the last message. */
  stop(): void {
    this.running = false;
    this.drop();
    this.options.onConnection({ kind: 'paused' });
  }

  /** Try at once instead of after the rest of a pause. */
  retry(): void {
    if (this.running && this.socket === null) {
      this.connect();
    }
  }

  private connect(): void {
    this.drop();
    let opened = false;
    const socket = this.options.openSocket(this.options.api.eventsUrl(this.after));
    this.socket = socket;
    const expectWithin = (milliseconds: number) => {
      this.later(milliseconds, () => end());
    };
    const end = () => {
      if (this.socket === socket) {
        this.drop();
        this.failures += 1;
        if (opened) {
          this.options.onConnection({ kind: 'connecting' });
          this.later(this.pause(), () => this.connect());
        } else {
          void this.poll();
        }
      }
    };
    socket.onopen = () => {
      opened = true;
      this.polls = 0;
      this.options.onConnection({ kind: 'live' });
      expectWithin(SILENCE_MS);
    };
    socket.onmessage = message => {
      let event: BrokerEvent;
      try {
        event = JSON.parse(String(message.data)) as BrokerEvent;
      } catch {
        end(); // something in between talks: begin anew
        return;
      }
      this.failures = 0;
      this.after = event.sequence;
      this.options.onEvent(event);
      expectWithin(SILENCE_MS);
    };
    socket.onclose = end;
    expectWithin(OPEN_MS);
  }

  /** Ask over HTTP: it works, or its failure says why nothing does. */
  private async poll(): Promise<void> {
    const run = ++this.run;
    try {
      const [devices, jobs] = await Promise.all([
        this.options.api.devices(),
        this.options.api.jobs()
      ]);
      if (run !== this.run) {
        return;
      }
      const readAt = devices.map(({ reading }) => reading?.read_at ?? 0);
      this.options.onConnection({ kind: 'polling', seconds: POLL_MS / 1000 });
      this.options.onEvent({
        sequence: this.after ?? 0,
        at: Math.max(Date.now() / 1000, ...readAt),
        kind: 'snapshot',
        job: null,
        jobs,
        devices
      });
      this.polls += 1;
      this.later(POLL_MS, () =>
        this.polls % SOCKET_RETRY_POLLS === 0 ? this.connect() : void this.poll()
      );
    } catch (error) {
      if (run !== this.run) {
        return;
      }
      this.options.onConnection({ kind: 'lost', error: asApiError(error) });
      this.later(this.pause(), () => this.connect());
    }
  }

  /** Doubles from one failure to the next, and differs from page to page. */
  private pause(): number {
    const longest = Math.min(LAST_RETRY_MS, FIRST_RETRY_MS * 2 ** Math.max(0, this.failures - 1));
    const random = this.options.random ?? Math.random;
    return longest * (0.5 + 0.5 * random());
  }

  private later(milliseconds: number, action: () => void): void {
    if (this.timer !== null) {
      clearTimeout(this.timer);
    }
    this.timer = setTimeout(action, milliseconds);
  }

  private drop(): void {
    this.run += 1;
    if (this.timer !== null) {
      clearTimeout(this.timer);
      this.timer = null;
    }
    const socket = this.socket;
    this.socket = null;
    if (socket !== null) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
  }
}

/** Any failure as one that tells what to do. */
export function asApiError(error: unknown): ApiError {
  return error instanceof ApiError
    ? error
    : new ApiError(0, 'internal', `The sidebar failed: ${String(error)}`, 'Reload the page.');
}
