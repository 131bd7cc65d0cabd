/**
 * The one store: it holds the state, hears the stream while somebody looks, and carries out what
 * people ask for.
 */

import type { BrokerApi } from './api';
import type { Socket } from './feed';
import { EventFeed } from './feed';
import type { BrokerEvent, Job, StoryEntry } from './records';
import { hasEnded } from './records';
import type { BrokerState, Connection } from './state';
import { INITIAL_STATE, apply, isMine } from './state';

export interface StoreOptions {
  readonly api: BrokerApi;
  readonly openSocket: (url: string) => Socket;
  /** Whose page this is; `null` where the server does not say: then every job counts as mine. */
  readonly owner?: string | null;
  /** Whether the page can be seen. */
  readonly isVisible: () => boolean;
  /** When to tell listeners of a change; several changes before then are told as one. */
  readonly schedule?: (action: () => void) => void;
}

/** Told when one of my jobs passes from one state to another. */
export type JobListener = (before: Job, now: Job) => void;

/** A short look at another tab does not end the stream. */
const LINGER_MS = 5_000;
const HISTORY_LENGTH = 50;

export class BrokerStore {
  private current: BrokerState;
  private readonly listeners = new Set<() => void>();
  private readonly jobListeners = new Set<JobListener>();
  private readonly feed: EventFeed;
  private readonly schedule: (action: () => void) => void;
  private lookers = 0;
  private running = false;
  private told = true;
  private linger: ReturnType<typeof setTimeout> | null = null;

  constructor(private readonly options: StoreOptions) {
    this.current = { ...INITIAL_STATE, owner: options.owner ?? null };
    this.schedule = options.schedule ?? (action => setTimeout(action, 40));
    this.feed = new EventFeed({
      api: options.api,
      openSocket: options.openSocket,
      onEvent: event => this.receive(event),
      onConnection: connection => this.connected(connection)
    });
  }

  /** The state as it is; a new object after each change. */
  get state(): BrokerState {
    return this.current;
  }

  /** Call `listener` after changes, until the returned function is called. */
  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** Call `listener` when one of my jobs changes its state. */
  onJobChange(listener: JobListener): () => void {
    this.jobListeners.add(listener);
    return () => this.jobListeners.delete(listener);
  }

  /** Somebody looks: the stream is open until the returned function is called. */
  look(): () => void {
    this.lookers += 1;
    this.update();
    let looking = true;
    return () => {
      if (looking) {
        looking = false;
        this.lookers -= 1;
        this.update();
      }
    };
  }

  /** To be called when the page is shown or hidden. */
  update(): void {
    if (this.linger !== null) {
      clearTimeout(this.linger);
      this.linger = null;
    }
    const wanted = this.lookers > 0 && this.options.isVisible();
    if (wanted && !this.running) {
      this.running = true;
      this.feed.start();
    } else if (!wanted && this.running) {
      this.linger = setTimeout(() => {
        this.running = false;
        this.feed.stop();
      }, LINGER_MS);
    }
  }

  /** Try to connect now. */
  retry(): void {
    this.feed.retry();
  }

  /** Close everything. */
  dispose(): void {
    this.lookers = 0;
    this.listeners.clear();
    this.jobListeners.clear();
    if (this.linger !== null) {
      clearTimeout(this.linger);
    }
    this.feed.stop();
  }

  /** Leave the queue, or ask the running job to stop. */
  async cancel(jobId: string): Promise<void> {
    const job = await this.options.api.cancel(jobId);
    this.receiveJob(job);
  }

  /** What happened to a job, oldest first. */
  story(jobId: string): Promise<readonly StoryEntry[]> {
    return this.options.api.story(jobId);
  }

  /** Ask again for the jobs that ended. */
  async loadHistory(): Promise<void> {
    const history = await this.options.api.history(HISTORY_LENGTH);
    this.change({ history });
  }

  private connected(connection: Connection): void {
    const before = this.current.connection.kind;
    this.change({ connection });
    const hears = connection.kind === 'live' || connection.kind === 'polling';
    if (hears && before !== connection.kind) {
      void this.loadAbout();
      void this.loadHistory().catch(() => undefined);
    }
  }

  /** What the stream does not tell. Without it the interface shows less, and nothing wrong. */
  private async loadAbout(): Promise<void> {
    try {
      this.change({ health: await this.options.api.health() });
    } catch {
      this.change({ health: null });
    }
  }

  private receive(event: BrokerEvent): void {
    const before = this.current.jobs;
    this.change(apply(this.current, event, Date.now() / 1000));
    if (event.job !== null) {
      this.tellJobChange(before.get(event.job.id), event.job);
    }
    for (const job of event.jobs) {
      this.tellJobChange(before.get(job.id), job);
    }
  }

  private receiveJob(job: Job): void {
    this.receive({
      sequence: this.current.sequence ?? 0,
      at: Date.now() / 1000 + this.current.clockSkew,
      kind: 'job',
      job,
      jobs: [],
      devices: []
    });
  }

  private tellJobChange(before: Job | undefined, now: Job): void {
    if (before === undefined || before.state === now.state) {
      return;
    }
    if (hasEnded(now.state)) {
      void this.loadHistory().catch(() => undefined);
    }
    if (isMine(this.current, now.owner)) {
      for (const listener of this.jobListeners) {
        listener(before, now);
      }
    }
  }

  private change(part: Partial<BrokerState>): void {
    this.current = { ...this.current, ...part };
    if (this.told) {
      this.told = false;
      this.schedule(() => {
        this.told = true;
        for (const listener of [...this.listeners]) {
          listener();
        }
      });
    }
  }
}
