import { cleanup, render, screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import axe from 'axe-core';
import * as React from 'react';
import { afterEach, describe, expect, it, vi } from 'vitest';

import { ApiError } from '../src/api';
import type { Actions, Words } from '../src/context';
import { ActionsContext, WordsContext } from '../src/context';
import { notificationOf } from '../src/notifications';
import { Panel } from '../src/panel';
import type { Job } from '../src/records';
import type { BrokerState } from '../src/state';
import { INITIAL_STATE, apply } from '../src/state';
import { GIB, device, deviceState, event, job, resident, waiting } from './records';

const words: Words = {
  __: (text, ...values) => fill(text, values),
  _n: (one, many, count, ...values) => fill(count === 1 ? one : many, values)
};

function fill(text: string, values: unknown[]): string {
  return text.replace(/%(\d)/g, (_, place: string) => String(values[Number(place) - 1]));
}

function actions(changes: Partial<Actions> = {}): Actions {
  return {
    cancel: () => Promise.resolve(),
    openNotebook: () => Promise.resolve(),
    story: () => Promise.resolve([]),
    retry: () => undefined,
    ...changes
  };
}

function show(state: BrokerState, given: Actions = actions()): HTMLElement {
  return render(
    <WordsContext.Provider value={words}>
      <ActionsContext.Provider value={given}>
        <Panel state={state} pageNow={1100} />
      </ActionsContext.Provider>
    </WordsContext.Provider>
  ).container;
}

function live(changes: Parameters<typeof event>[0] = {}): BrokerState {
  return {
    ...apply(INITIAL_STATE, event({ devices: [deviceState()], jobs: [job()], ...changes }), 1000),
    connection: { kind: 'live' }
  };
}

afterEach(cleanup);

describe('a device', () => {
  it('tells its use, its memory and who is on it', () => {
    const card = within(show(live())).getByRole('article', { name: 'GPU 0 (A100-80GB)' });
    expect(card.textContent).toContain('57 %');
    expect(card.textContent).toContain('18 GiB of 80 GiB');
    const bar = within(card).getByRole('img', { name: /^Memory/ });
    expect(bar.getAttribute('aria-label')).toBe(
      'Memory: 18 GiB in use, 20 GiB reserved by residents, 3 GiB unmanaged, 2 GiB margin, 55 GiB free of 80 GiB'
    );
    const row = within(
      within(card).getByRole('list', { name: 'Residents of GPU 0 (A100-80GB)' })
    ).getByRole('listitem');
    expect(row.textContent).toContain('Tokens');
    expect(row.textContent).toContain('ana · tokens.ipynb');
    expect(row.textContent).toContain('predicted 30–50 %');
    expect(row.textContent).toContain('bound 1.25×');
  });

  it('says unknown with the reason, and never zero', () => {
    const container = show(
      live({
        devices: [
          deviceState({
            reading: {
              uuid: 'GPU-a',
              read_at: 1000,
              health: 'degraded',
              utilization: null,
              memory_utilization: null,
              memory_used_bytes: null,
              unknown: { utilization: 'a MIG slice tells none', processes: 'the driver hides them' }
            },
            unmanaged_bytes: null,
            residents: [resident({ measured_bytes: null, measured_utilization: null })]
          })
        ]
      })
    );
    const titles = [...container.querySelectorAll('.horus-Device .horus-Unknown')].map(each =>
      each.getAttribute('title')
    );
    expect(titles).toContain('a MIG slice tells none');
    expect(titles.filter(title => title === 'the driver hides them')).toHaveLength(2);
    const values = container.querySelectorAll('.horus-Device :is(.horus-Figure-value, .horus-Row)');
    for (const value of values) {
      expect(value.textContent).not.toMatch(/(^|\s)0( %|\s|$)/);
    }
    expect(values.length).toBeGreaterThanOrEqual(5);
  });

  it('that is simulated is marked', () => {
    show(live({ devices: [deviceState({ device: device({ simulated: true }) })] }));
    expect(screen.getByText('SIM')).toBeDefined();
  });

  it('shows who passed the bound or the reservation', () => {
    const container = show(
      live({
        devices: [
          deviceState({
            residents: [resident({ measured_slowdown: 1.4, measured_bytes: 21 * GIB })]
          })
        ]
      })
    );
    const warned = [...container.querySelectorAll('.horus-Figure.horus-mod-warning')].map(
      each => each.querySelector('.horus-Figure-value')?.textContent
    );
    expect(warned).toEqual(['21 GiB', '1.40×']);
  });
});

it('a machine without a GPU says once that its CPU is the device', () => {
  show(live({ devices: [deviceState({ device: device({ kind: 'cpu', name: 'CPU' }) })] }));
  expect(screen.getAllByText(/its CPU is the device/)).toHaveLength(1);
});

describe('the queue', () => {
  it('tells place, reason and expectation', () => {
    show(live({ jobs: [waiting()] }));
    const row = within(screen.getByRole('list', { name: 'Queue' })).getByRole('listitem');
    expect(row.textContent).toContain('1');
    expect(row.textContent).toContain('GPU 0 lacks 14.4 GiB.');
    expect(row.textContent).toContain('expected in 9–10 min');
  });

  it('that is empty says so', () => {
    show(live());
    expect(screen.getByText('Nobody waits.')).toBeDefined();
  });
});

describe('a job of mine', () => {
  it('can be cancelled; a refusal is told beside it', async () => {
    const cancel = vi.fn((_job: Job) => Promise.reject(new Error('The store is locked.')));
    show(live(), actions({ cancel }));
    await userEvent.click(screen.getByRole('button', { name: 'Cancel Tokens' }));
    expect(cancel.mock.calls[0]?.[0].id).toBe('job-1');
    expect((await screen.findByRole('alert')).textContent).toBe('The store is locked.');
  });

  it('that was asked to stop cannot be asked again', () => {
    show(live({ jobs: [job({ cancel_requested: true })] }));
    const button = screen.getByRole<HTMLButtonElement>('button', { name: 'Cancel Tokens' });
    expect(button.disabled).toBe(true);
    expect(button.textContent).toBe('Stopping…');
  });

  it('compares what was predicted with what is measured', () => {
    const container = show(live());
    const memory = container.querySelector('.horus-Comparison');
    expect(memory?.textContent).toContain('15 GiB');
    expect(memory?.textContent).toContain('predicted 12–16 GiB');
    expect(memory?.getAttribute('title')).toBe('inside the prediction');
  });

  it('tells its story when asked', async () => {
    const story = () =>
      Promise.resolve([
        {
          at: 910,
          event: 'granted',
          from_state: 'queued' as const,
          to_state: 'granted' as const,
          why: 'beside 1 other on GPU 0',
          event_id: 'e-1'
        }
      ]);
    show(live(), actions({ story }));
    await userEvent.click(screen.getByRole('button', { name: 'Story' }));
    expect(await screen.findByText(/beside 1 other on GPU 0/)).toBeDefined();
  });
});

describe('before and without an answer', () => {
  it('it says that it asks', () => {
    show(INITIAL_STATE);
    expect(screen.getByText('Asking the broker…')).toBeDefined();
  });

  it('it says what is wrong and what to do, and can be told to try again', async () => {
    const retry = vi.fn();
    const error = new ApiError(
      503,
      'broker_unavailable',
      'The store is locked.',
      'Close the other.'
    );
    show({ ...INITIAL_STATE, connection: { kind: 'lost', error } }, actions({ retry }));
    expect(screen.getByRole('alert').textContent).toBe('The store is locked.Close the other.');
    await userEvent.click(screen.getByRole('button', { name: 'Try again now' }));
    expect(retry).toHaveBeenCalledOnce();
  });

  it('what was last known stays, and is called so', () => {
    const error = new ApiError(0, 'no_answer', 'The Jupyter server does not answer.', '');
    show({ ...live(), connection: { kind: 'lost', error } });
    expect(screen.getByRole('alert').textContent).toContain('what was last known');
    expect(screen.getByRole('article')).toBeDefined();
  });

  it('a machine without devices says so', () => {
    show(live({ devices: [], jobs: [] }));
    expect(screen.getByText('There is no device to share.')).toBeDefined();
  });
});

it('names that are attacks stay text', () => {
  const attack = '<img src=x onerror="window.hacked = 1">';
  const container = show(
    live({
      devices: [
        deviceState({
          device: device({ name: attack }),
          residents: [resident({ name: attack, owner: attack, notebook: attack })]
        })
      ],
      jobs: [
        job({ request: { ...job().request, name: attack, notebook: attack } }),
        waiting({ request: { ...job().request, name: attack } })
      ]
    })
  );
  expect(container.querySelector('img')).toBeNull();
  expect(screen.getAllByText(attack).length).toBeGreaterThanOrEqual(4);
});

it('sections close and open by keyboard', async () => {
  show(live());
  const toggle = screen.getByRole('button', { name: /^Devices/ });
  toggle.focus();
  await userEvent.keyboard('{Enter}');
  expect(toggle.getAttribute('aria-expanded')).toBe('false');
  expect(screen.queryByRole('article')).toBeNull();
  await userEvent.keyboard(' ');
  expect(screen.getByRole('article')).toBeDefined();
});

it('axe finds nothing to complain about', async () => {
  const container = show(live({ jobs: [job(), waiting()] }));
  // Colours and ligatures need a real browser; regions are JupyterLab's.
  const found = await axe.run(container, {
    rules: {
      'color-contrast': { enabled: false },
      'label-content-name-mismatch': { enabled: false },
      region: { enabled: false }
    }
  });
  expect(found.violations.map(each => `${each.id}: ${each.help}`)).toEqual([]);
});

describe('a notification', () => {
  it('tells of a grant that was waited for', () => {
    const now = waiting({ state: 'granted', granted_at: 960 });
    expect(notificationOf(waiting(), now, words)?.text).toBe('Tokens has its slot after 1 min.');
  });

  it('tells nothing of a grant that came at once, nor of a cancellation', () => {
    expect(notificationOf(waiting(), waiting({ state: 'granted', granted_at: 901 }), words)).toBe(
      null
    );
    expect(notificationOf(job(), job({ state: 'cancelled' }), words)).toBeNull();
  });

  it('tells of a failure with its reason', () => {
    const failed = job({ state: 'failed', ended_at: 1000, outcome: 'CUDA out of memory.' });
    expect(notificationOf(job(), failed, words)).toEqual({
      text: 'Tokens failed. CUDA out of memory.',
      type: 'error'
    });
  });

  it('tells of the end of a long run only', () => {
    expect(notificationOf(job(), job({ state: 'done', ended_at: 930 }), words)).toBeNull();
    expect(notificationOf(job(), job({ state: 'done', ended_at: 1032 }), words)?.text).toBe(
      'Tokens is done after 2 min.'
    );
  });
});
