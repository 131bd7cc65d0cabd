import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { ApiError } from '../src/api';
import type { Job } from '../src/records';
import { BrokerStore } from '../src/store';
import { deviceState, event, job, waiting } from './records';

class FakeSocket {
  onopen: (() => void) | null = null;
  onmessage: ((message: { data: string }) => void) | null = null;
  onclose: (() => void) | null = null;
  closed = false;

  constructor(readonly url: string) {}

  close(): void {
    this.closed = true;
  }

  say(message: unknown): void {
    this.onmessage?.({ data: JSON.stringify(message) });
  }
}

/** A store with sockets that the test holds, an API that the test answers for, a page it hides. */
function scene() {
  const sockets: FakeSocket[] = [];
  const page = { visible: true };
  const api = {
    health: vi.fn(() => Promise.reject(new Error('not asked for here'))),
    devices: vi.fn(() => Promise.resolve([deviceState()])),
    jobs: vi.fn(() => Promise.resolve([job()])),
    story: vi.fn(() => Promise.resolve([])),
    history: vi.fn(() => Promise.reject(new Error('not asked for here'))),
    cancel: vi.fn((id: string) => Promise.resolve(job({ id, state: 'cancelled', revision: 9 }))),
    eventsUrl: (after: number | null) => `ws://lab/events?after=${String(after)}`
  };
  const store = new BrokerStore({
    api: api,
    openSocket: url => {
      const socket = new FakeSocket(url);
      sockets.push(socket);
      return socket;
    },
    isVisible: () => page.visible,
    schedule: action => action()
  });
  const last = () => {
    const socket = sockets.at(-1);
    if (socket === undefined) {
      throw new Error('no socket was opened');
    }
    return socket;
  };
  return { store, sockets, last, page, api };
}

beforeEach(() => {
  vi.useFakeTimers();
});

afterEach(() => {
  vi.useRealTimers();
});

describe('the stream', () => {
  it('is opened when somebody looks, and fills the store', () => {
    const { store, sockets, last } = scene();
    expect(sockets).toHaveLength(0);
    store.look();
    last().onopen?.();
    last().say(event({ sequence: 7, jobs: [job()], devices: [deviceState()] }));
    expect(store.state.connection.kind).toBe('live');
    expect(store.state.devices).toHaveLength(1);
    expect(store.state.jobs.has('job-1')).toBe(true);
  });

  it('resumes after the last message when it broke', async () => {
    const { store, sockets, last } = scene();
    store.look();
    last().onopen?.();
    last().say(event({ sequence: 41 }));
    last().onclose?.();
    expect(store.state.connection.kind).toBe('connecting');
    await vi.advanceTimersByTimeAsync(1000);
    expect(sockets).toHaveLength(2);
    expect(last().url).toBe('ws://lab/events?after=41');
  });

  it('is taken for dead after a long silence', async () => {
    const { store, sockets, last } = scene();
    store.look();
    last().onopen?.();
    await vi.advanceTimersByTimeAsync(89_000);
    last().say(event());
    await vi.advanceTimersByTimeAsync(89_000);
    expect(sockets).toHaveLength(1);
    await vi.advanceTimersByTimeAsync(3_000);
    expect(sockets).toHaveLength(2);
    expect(sockets[0]?.closed).toBe(true);
  });

  it('begins anew when something in between talks', async () => {
    const { store, sockets, last } = scene();
    store.look();
    last().onopen?.();
    last().onmessage?.({ data: '<html>' });
    await vi.advanceTimersByTimeAsync(1000);
    expect(sockets).toHaveLength(2);
  });
});

describe('where no WebSocket gets through', () => {
  it('the broker is asked instead, and the WebSocket tried again each minute', async () => {
    const { store, sockets, last, api } = scene();
    store.look();
    last().onclose?.();
    await vi.advanceTimersByTimeAsync(0);
    expect(store.state.connection).toEqual({ kind: 'polling', seconds: 5 });
    expect(store.state.jobs.has('job-1')).toBe(true);
    await vi.advanceTimersByTimeAsync(5000);
    expect(api.devices).toHaveBeenCalledTimes(2);
    expect(sockets).toHaveLength(1);
    await vi.advanceTimersByTimeAsync(55_000);
    expect(sockets).toHaveLength(2);
    expect(last().url).toBe('ws://lab/events?after=null');
  });

  it('a socket that never opens counts as refused', async () => {
    const { store } = scene();
    store.look();
    await vi.advanceTimersByTimeAsync(10_000);
    expect(store.state.connection.kind).toBe('polling');
  });

  it('and nothing answers, the reason is told and the pauses grow to half a minute', async () => {
    const { store, sockets, last, api } = scene();
    const down = new ApiError(503, 'broker_unavailable', 'The store is locked.', 'Wait.');
    api.devices.mockRejectedValue(down);
    store.look();
    const pauses: number[] = [];
    for (let attempt = 0; attempt < 8; attempt += 1) {
      last().onclose?.();
      await vi.advanceTimersByTimeAsync(0);
      expect(store.state.connection).toEqual({ kind: 'lost', error: down });
      const before = sockets.length;
      let waitedMs = 0;
      while (sockets.length === before) {
        await vi.advanceTimersByTimeAsync(250);
        waitedMs += 250;
      }
      pauses.push(waitedMs);
    }
    expect(pauses[0]).toBeLessThanOrEqual(1000);
    expect(Math.max(...pauses)).toBeLessThanOrEqual(30_000);
    expect(pauses.at(-1)).toBeGreaterThanOrEqual(15_000);
  });

  it('what was last known stays', async () => {
    const { store, last, api } = scene();
    store.look();
    last().onopen?.();
    last().say(event({ devices: [deviceState()] }));
    api.devices.mockRejectedValue(new ApiError(0, 'no_answer', 'No answer.', ''));
    last().onclose?.();
    await vi.advanceTimersByTimeAsync(1000);
    last().onclose?.();
    await vi.advanceTimersByTimeAsync(0);
    expect(store.state.connection.kind).toBe('lost');
    expect(store.state.devices).toHaveLength(1);
  });

  it('a person can have it tried at once', async () => {
    const { store, sockets, last, api } = scene();
    api.devices.mockRejectedValue(new ApiError(0, 'no_answer', 'No answer.', ''));
    store.look();
    last().onclose?.();
    await vi.advanceTimersByTimeAsync(0);
    store.retry();
    expect(sockets).toHaveLength(2);
  });
});

describe('while nobody looks', () => {
  it('the stream closes after a moment, and resumes with the next look', async () => {
    const { store, sockets, last } = scene();
    const stop = store.look();
    last().onopen?.();
    last().say(event({ sequence: 5 }));
    stop();
    await vi.advanceTimersByTimeAsync(4000);
    expect(last().closed).toBe(false);
    await vi.advanceTimersByTimeAsync(2000);
    expect(last().closed).toBe(true);
    expect(store.state.connection.kind).toBe('paused');
    store.look();
    expect(sockets).toHaveLength(2);
    expect(last().url).toBe('ws://lab/events?after=5');
  });

  it('a hidden page asks nothing, a shown one goes on', async () => {
    const { store, sockets, last, page } = scene();
    store.look();
    last().onopen?.();
    page.visible = false;
    store.update();
    await vi.advanceTimersByTimeAsync(6000);
    expect(last().closed).toBe(true);
    await vi.advanceTimersByTimeAsync(120_000);
    expect(sockets).toHaveLength(1);
    page.visible = true;
    store.update();
    expect(sockets).toHaveLength(2);
  });

  it('an answer that was under way changes nothing', async () => {
    const { store, last, api } = scene();
    let answer: (devices: never[]) => void = () => undefined;
    api.devices.mockReturnValue(new Promise(resolve => (answer = resolve)) as never);
    const stop = store.look();
    last().onclose?.();
    stop();
    await vi.advanceTimersByTimeAsync(6000);
    answer([]);
    await vi.advanceTimersByTimeAsync(0);
    expect(store.state.connection.kind).toBe('paused');
  });

  it('two who look keep it open until both are gone', async () => {
    const { store, last } = scene();
    const first = store.look();
    store.look();
    last().onopen?.();
    first();
    first();
    await vi.advanceTimersByTimeAsync(6000);
    expect(last().closed).toBe(false);
  });
});

describe('jobs', () => {
  it('that are cancelled show it with the answer', async () => {
    const { store, last } = scene();
    store.look();
    last().onopen?.();
    last().say(event({ jobs: [job()] }));
    await store.cancel('job-1');
    expect(store.state.jobs.get('job-1')?.state).toBe('cancelled');
  });

  it('tell their changes once, and nothing of the first sight', () => {
    const { store, last } = scene();
    const seen: [string, string][] = [];
    store.onJobChange((before: Job, now: Job) => seen.push([before.state, now.state]));
    store.look();
    last().onopen?.();
    last().say(event({ jobs: [waiting()] }));
    const granted = waiting({ state: 'granted', revision: 2 });
    last().say(event({ sequence: 2, kind: 'job', job: granted }));
    last().say(event({ sequence: 3, kind: 'job', job: granted }));
    expect(seen).toEqual([['queued', 'granted']]);
  });
});
