/** The whole panel: the connection, my jobs, the devices, the queue, what ended. */

import * as React from 'react';

import type { ApiError } from './api';
import { useActions, useWords } from './context';
import { DeviceCard } from './deviceCard';
import { HistoryList } from './historyList';
import { JobCard } from './jobCard';
import { QueueList } from './queueList';
import { Note, Section } from './section';
import type { BrokerState, Connection } from './state';
import { isMine, myJobs, queue, withoutGpu } from './state';

export function Panel(props: {
  readonly state: BrokerState;
  readonly pageNow: number;
}): React.JSX.Element {
  const trans = useWords();
  const { state } = props;
  const { connection, devices } = state;
  if (devices === null) {
    return (
      <div className="horus-Panel">
        <ConnectionLine connection={connection} />
        {connection.kind === 'lost' ? (
          <Trouble error={connection.error} />
        ) : (
          <Note title={trans.__('Asking the broker…')}>
            {trans.__('Devices, the queue and your jobs appear as soon as it answers.')}
          </Note>
        )}
      </div>
    );
  }
  const now = props.pageNow + state.clockSkew;
  const mine = myJobs(state);
  const waiting = queue(state);
  const names = new Map(devices.map(({ device }) => [device.uuid, device.name]));
  const cpuAlone = withoutGpu(devices);
  return (
    <div className="horus-Panel">
      <ConnectionLine connection={connection} />
      {connection.kind === 'lost' && <Trouble error={connection.error} stale />}
      {(state.health?.notices ?? []).map(notice => (
        <Note key={notice} title={notice} />
      ))}
      <Section title={trans.__('Devices')} count={devices.length}>
        {cpuAlone && (
          <p className="horus-Quiet">
            {trans.__('No GPU is visible to this server: its CPU is the device.')}
          </p>
        )}
        {devices.length === 0 ? (
          <Note title={trans.__('There is no device to share.')}>
            {trans.__('The broker’s probe found none; the server’s log says what it tried.')}
          </Note>
        ) : (
          <div className="horus-Cards">
            {devices.map(each => (
              <DeviceCard
                key={each.device.uuid}
                state={each}
                points={state.uses.get(each.device.uuid) ?? []}
                colours={state.colours}
                jobs={state.jobs}
              />
            ))}
          </div>
        )}
      </Section>
      <Section title={trans.__('Queue')} count={waiting.length}>
        <QueueList queue={waiting} isMine={job => isMine(state, job.owner)} now={now} />
      </Section>
      <Section title={trans.__('My jobs')} count={mine.length}>
        {mine.length === 0 ? (
          <Note title={trans.__('No job of yours waits or runs.')}>
            {trans.__(
              'Give the Trainer a HorusCallback(), wrap a loop in horus_lab.slot(), or put %1 above a cell.',
              '%%horus run'
            )}
          </Note>
        ) : (
          <ul className="horus-Cards" aria-label={trans.__('My jobs')}>
            {mine.map(job => (
              <JobCard
                key={job.id}
                job={job}
                now={now}
                deviceName={uuid => names.get(uuid) ?? uuid}
              />
            ))}
          </ul>
        )}
      </Section>
      <Section title={trans.__('Recent runs')} open={false}>
        <HistoryList history={state.history} now={now} />
      </Section>
    </div>
  );
}

function ConnectionLine(props: { readonly connection: Connection }): React.JSX.Element {
  const trans = useWords();
  const { connection } = props;
  const [text, title] = {
    live: [trans.__('Live'), trans.__('Every change arrives at once.')],
    polling: [
      trans.__('Every few seconds'),
      trans.__('WebSockets do not get through here, so the broker is asked every few seconds.')
    ],
    connecting: [trans.__('Connecting…'), trans.__('The stream of changes is being opened.')],
    paused: [trans.__('Paused'), trans.__('Nothing is asked while nobody looks.')],
    lost: [trans.__('Not connected'), trans.__('It is tried again by itself.')]
  }[connection.kind] as [string, string];
  return (
    <div className="horus-Connection" role="status" title={title}>
      <span className={`horus-Dot horus-mod-${connection.kind}`} aria-hidden="true" />
      {text}
    </div>
  );
}

function Trouble(props: { readonly error: ApiError; readonly stale?: boolean }): React.JSX.Element {
  const trans = useWords();
  const actions = useActions();
  return (
    <div className="horus-Trouble">
      <Note tone="warning" title={props.error.message}>
        {props.error.hint}
        {props.stale === true && <> {trans.__('What stands below is what was last known.')}</>}
      </Note>
      <button type="button" className="horus-Button" onClick={() => actions.retry()}>
        {trans.__('Try again now')}
      </button>
    </div>
  );
}
