/** The status bar's item: my place, or what I hold. */

import * as React from 'react';

import type { Words } from './context';
import { durationBetween } from './format';
import { horusIcon } from './icon';
import { holds } from './records';
import type { BrokerState } from './state';
import { myJobs } from './state';
import type { BrokerStore } from './store';

/** What the status bar says. */
export function statusText(state: BrokerState, trans: Words): string {
  if (state.connection.kind === 'lost') {
    return trans.__('Horus: not connected');
  }
  if (state.devices === null) {
    return trans.__('Horus: …');
  }
  const mine = myJobs(state);
  const held = mine.filter(job => holds(job.state));
  const first = mine.find(job => job.state === 'queued');
  const names = new Map(state.devices.map(({ device }) => [device.uuid, device.name]));
  const parts: string[] = [];
  if (held.length === 1) {
    const uuid = held[0]?.lease?.slots[0]?.device_uuid ?? '';
    parts.push(trans.__('on %1', names.get(uuid) ?? trans.__('a device')));
  } else if (held.length > 1) {
    parts.push(trans.__('%1 running', held.length));
  }
  if (first !== undefined) {
    const place = trans.__('place %1', first.reason?.position ?? '–');
    const expected = first.reason?.expected_seconds;
    parts.push(expected ? `${place}, ${durationBetween(expected)}` : place);
  }
  return parts.length > 0
    ? trans.__('Horus: %1', parts.join(' · '))
    : trans.__('Horus: nothing of mine');
}

export function StatusItem(props: {
  readonly store: BrokerStore;
  readonly words: Words;
  readonly onClick: () => void;
}): React.JSX.Element {
  const { store, words } = props;
  const state = React.useSyncExternalStore(store.subscribe, () => store.state);
  const text = statusText(state, words);
  return (
    <button
      type="button"
      className="horus-Status"
      title={words.__('%1. Show the panel', text)}
      onClick={props.onClick}
    >
      <horusIcon.react tag="span" width="14px" height="14px" aria-hidden="true" />
      {text}
    </button>
  );
}
