import { describe, expect, it } from 'vitest';

import { memoryShares } from '../src/memory';
import { predictionOf, ran, secondsLeft, waited } from '../src/progress';
import { runs } from '../src/sparkline';
import type { BrokerState } from '../src/state';
import { INITIAL_STATE, USE_SECONDS, apply, myJobs, queue, withoutGpu } from '../src/state';
import {
  GIB,
  device,
  deviceState,
  event,
  interval,
  job,
  reading,
  resident,
  waiting
} from './records';

function after(...events: Parameters<typeof apply>[1][]): BrokerState {
  return events.reduce((state, each) => apply(state, each, each.at), INITIAL_STATE);
}

describe('a message', () => {
  it('of everything replaces everything', () => {
    const state = after(
      event({ jobs: [job()], devices: [deviceState()] }),
      event({ sequence: 2, jobs: [waiting()], devices: [] })
    );
    expect([...state.jobs.keys()]).toEqual(['job-2']);
    expect(state.devices).toEqual([]);
    expect(state.sequence).toBe(2);
  });

  it('of a job changes that job alone', () => {
    const state = after(
      event({ jobs: [job(), waiting()] }),
      event({ kind: 'job', job: waiting({ state: 'granted', revision: 2 }) })
    );
    expect(state.jobs.get('job-2')?.state).toBe('granted');
    expect(state.jobs.get('job-1')?.state).toBe('running');
  });

  it('that is older than what is known changes nothing', () => {
    const state = after(
      event({ jobs: [job({ revision: 5, state: 'done' })] }),
      event({ kind: 'job', job: job({ revision: 4 }) })
    );
    expect(state.jobs.get('job-1')?.state).toBe('done');
  });

  it('tells how far the broker’s clock is ahead of the page’s', () => {
    expect(apply(INITIAL_STATE, event({ at: 1000 }), 990).clockSkew).toBe(10);
  });
});

it('no more than fifty ended jobs are kept, the oldest go first', () => {
  const ended = Array.from({ length: 51 }, (_, index) =>
    job({ id: `ended-${String(index)}`, state: 'done', ended_at: 1000 + index })
  );
  const state = after(
    event({ jobs: ended }),
    event({ kind: 'job', job: job({ id: 'last', state: 'done', ended_at: 2000 }) })
  );
  expect(state.jobs.size).toBe(50);
  expect(state.jobs.has('ended-0')).toBe(false);
  expect(state.jobs.has('ended-1')).toBe(false);
  expect(state.jobs.has('last')).toBe(true);
});

describe('the utilization of a device', () => {
  const look = (at: number, utilization: number | null) =>
    event({
      kind: 'devices',
      at,
      devices: [
        deviceState({
          reading: reading({ read_at: at, utilization })
        })
      ]
    });

  it('is kept for fifteen minutes', () => {
    const state = after(look(0, 0.1), look(USE_SECONDS, 0.2), look(USE_SECONDS + 1, 0.3));
    expect(state.uses.get('GPU-a')).toEqual([
      { at: USE_SECONDS, utilization: 0.2 },
      { at: USE_SECONDS + 1, utilization: 0.3 }
    ]);
  });

  it('counts a look that comes twice once', () => {
    expect(after(look(5, 0.1), look(5, 0.1)).uses.get('GPU-a')).toHaveLength(1);
  });

  it('is drawn with a gap where it was unknown, never as zero', () => {
    const points = [0.5, 0.5, null, 0.5, 0.5].map((utilization, index) => ({
      at: 1000 + index,
      utilization
    }));
    const drawn = runs(points);
    expect(drawn).toHaveLength(2);
    expect(drawn.flat().every(({ y }) => y === 0.5)).toBe(true);
  });

  it('is drawn with a gap where nobody looked', () => {
    const points = [0, 1, 2, 60, 61].map(at => ({ at, utilization: 0.5 }));
    expect(runs(points)).toHaveLength(2);
  });
});

describe('the colours of residents', () => {
  const on = (...ids: string[]) =>
    event({
      kind: 'devices',
      devices: [deviceState({ residents: ids.map(id => resident({ job_id: id })) })]
    });

  it('stay while they stay, and a newcomer takes the lowest free one', () => {
    const state = after(on('a', 'b', 'c'), on('b', 'c'), on('b', 'c', 'd'));
    expect(Object.fromEntries(state.colours)).toEqual({ b: 1, c: 2, d: 0 });
  });
});

describe('the lists', () => {
  it('show the queue by place', () => {
    const place = (id: string, position: number) =>
      waiting({ id, reason: { position, absent: false, sentence: '', expected_seconds: null } });
    const state = after(event({ jobs: [place('b', 2), place('c', 3), place('a', 1), job()] }));
    expect(queue(state).map(each => each.id)).toEqual(['a', 'b', 'c']);
  });

  it('show of my jobs those that hold before those that wait, and nobody else’s', () => {
    const state = {
      ...after(event({ jobs: [waiting(), job(), job({ id: 'x', owner: 'ben' })] })),
      owner: 'ana'
    };
    expect(myJobs(state).map(each => each.id)).toEqual(['job-1', 'job-2']);
  });

  it('count every job as mine on a server that tells no owner', () => {
    expect(myJobs(after(event({ jobs: [job({ owner: 'ben' })] })))).toHaveLength(1);
  });
});

it('the CPU stands in where it is the only device', () => {
  const cpu = deviceState({ device: device({ kind: 'cpu' }) });
  expect(withoutGpu([cpu])).toBe(true);
  expect(withoutGpu([cpu, deviceState()])).toBe(false);
  expect(withoutGpu([])).toBe(false);
});

describe('the memory bar', () => {
  it('divides the capacity as the broker does: 20 of 80 reserved, 3 unmanaged, 2 margin', () => {
    const shares = memoryShares(deviceState());
    expect(shares.residents[0]?.charged).toBeCloseTo(0.25);
    expect(shares.residents[0]?.measured).toBeCloseTo(15 / 80);
    expect(shares.unmanaged).toBeCloseTo(3 / 80);
    expect(shares.freeBytes).toBe(55 * GIB);
    expect(shares.free).toBeCloseTo(55 / 80);
  });

  it('charges what is measured where that is more than was reserved', () => {
    const shares = memoryShares(
      deviceState({ residents: [resident({ measured_bytes: 30 * GIB })] })
    );
    expect(shares.residents[0]?.charged).toBeCloseTo(30 / 80);
    expect(shares.freeBytes).toBe(45 * GIB);
  });

  it('does not know what is free while unmanaged use is unknown', () => {
    const shares = memoryShares(deviceState({ unmanaged_bytes: null }));
    expect(shares.unmanaged).toBeNull();
    expect(shares.freeBytes).toBeNull();
  });

  it('has nothing free, and no negative width, on a device that is over-full', () => {
    const shares = memoryShares(deviceState({ unmanaged_bytes: 70 * GIB }));
    expect(shares.free).toBe(0);
    expect(shares.freeBytes).toBe(0);
  });
});

describe('the time a run has left', () => {
  const measured = { ...job().measured, steps: 600, steps_per_second_alone: 10 };
  const request = { ...job().request, steps: 1000 };

  it('is the remaining steps at the present rate: 400 at 10 a second', () => {
    expect(secondsLeft(job({ measured, request }))).toBe(40);
  });

  it('takes the rate with neighbours where there is one: 400 at 8 a second', () => {
    const shared = { ...measured, steps_per_second_shared: 8 };
    expect(secondsLeft(job({ measured: shared, request }))).toBe(50);
  });

  it('is unknown without a number of steps or a rate', () => {
    expect(secondsLeft(job({ measured }))).toBeNull();
    expect(secondsLeft(job({ request }))).toBeNull();
  });
});

it('a job waited until its grant and ran from its start', () => {
  expect(waited(job(), 2000)).toBe(10);
  expect(waited(waiting(), 2000)).toBe(1100);
  expect(ran(job({ ended_at: 1012 }), 2000)).toBe(100);
  expect(ran(waiting(), 2000)).toBeNull();
});

it('the prediction shown is the one for the device the job is on', () => {
  const alone = job().predictions['GPU-a'];
  if (alone === undefined) {
    throw new Error('the job has no prediction');
  }
  const other = { ...alone, utilization: interval(0.7, 0.8, 0.9) };
  const slot = { device_uuid: 'GPU-b', reserved_bytes: 1, utilization: null, slowdown: null };
  const found = predictionOf(
    job({
      predictions: { 'GPU-a': alone, 'GPU-b': other },
      lease: { fence: 1, granted_at: 1, slots: [slot] }
    })
  );
  expect(found?.utilization?.p50).toBe(0.8);
});
