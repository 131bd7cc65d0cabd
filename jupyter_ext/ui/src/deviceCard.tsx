/** One device: what it does, what its memory holds, who is on it. */

import * as React from 'react';

import { useWords } from './context';
import { bytes, duration, fileName, percent, percentBetween, times, timesBetween } from './format';
import { MemoryBar, colourClass } from './memoryBar';
import type { DeviceState, Job, Resident } from './records';
import { Badge, Note } from './section';
import { Sparkline } from './sparkline';
import type { UsePoint } from './state';
import { secondsLeft } from './progress';
import { Figure, Unknown, whyUnknown } from './value';

export function DeviceCard(props: {
  readonly state: DeviceState;
  readonly points: readonly UsePoint[];
  readonly colours: ReadonlyMap<string, number>;
  readonly jobs: ReadonlyMap<string, Job>;
}): React.JSX.Element {
  const trans = useWords();
  const { device, reading, residents } = props.state;
  const utilization = reading?.utilization ?? null;
  const id = React.useId();
  return (
    <article className="horus-Card horus-Device" aria-labelledby={id} data-uuid={device.uuid}>
      <header className="horus-Device-header">
        <h3 id={id} className="horus-Device-name" title={device.uuid}>
          {device.name}
        </h3>
        {device.simulated && (
          <Badge
            text="SIM"
            tone="strong"
            title={trans.__('A simulated device: it plays its residents’ predicted load.')}
          />
        )}
        {reading !== null && reading.health !== 'ok' && (
          <Badge
            text={reading.health === 'lost' ? trans.__('lost') : trans.__('degraded')}
            tone="warning"
            title={whyUnknown(reading, 'device', ...Object.keys(reading.unknown))}
          />
        )}
      </header>
      {reading?.health === 'lost' && (
        <Note tone="warning" title={trans.__('This device does not answer.')}>
          {trans.__('Nothing new is put on it; who is on it keeps the place until it is back.')}
        </Note>
      )}
      <div>
        <div className="horus-Row">
          <span>{trans.__('Utilization')}</span>
          <span>
            {utilization === null ? (
              <Unknown
                why={
                  whyUnknown(reading, 'utilization', 'device') ??
                  (reading === null
                    ? trans.__('The device has not been looked at yet.')
                    : undefined)
                }
              />
            ) : (
              <strong>{percent(utilization)}</strong>
            )}
          </span>
        </div>
        <Sparkline points={props.points} />
      </div>
      <MemoryBar state={props.state} colours={props.colours} />
      {residents.length === 0 ? (
        <p className="horus-Quiet">{trans.__('Nobody holds a slot here.')}</p>
      ) : (
        <ul className="horus-Residents" aria-label={trans.__('Residents of %1', device.name)}>
          {residents.map(resident => (
            <ResidentRow
              key={resident.job_id}
              resident={resident}
              unknownMemory={whyUnknown(reading, 'processes', 'memory_used_bytes')}
              job={props.jobs.get(resident.job_id)}
              colour={props.colours.get(resident.job_id)}
            />
          ))}
        </ul>
      )}
    </article>
  );
}

function ResidentRow(props: {
  readonly resident: Resident;
  /** Why the device does not tell what each process uses. */
  readonly unknownMemory: string | undefined;
  readonly job: Job | undefined;
  readonly colour: number | undefined;
}): React.JSX.Element {
  const trans = useWords();
  const { resident, job } = props;
  const bound = job?.request.constraints.max_slowdown ?? null;
  const left = job === undefined ? null : secondsLeft(job);
  const overBound =
    bound !== null && resident.measured_slowdown !== null && resident.measured_slowdown > bound;
  const over =
    resident.measured_bytes !== null && resident.measured_bytes > resident.reserved_bytes;
  return (
    <li className="horus-Resident">
      <div className="horus-Resident-title">
        <span className={`horus-Swatch ${colourClass(props.colour)}`} aria-hidden="true" />
        <span className="horus-Name" title={resident.name}>
          {resident.name}
        </span>
        {resident.state !== 'running' && <StateWord state={resident.state} />}
        <Whose owner={resident.owner} notebook={resident.notebook} />
      </div>
      <dl className="horus-Figures">
        <Figure
          name={trans.__('Memory')}
          detail={trans.__('of %1', bytes(resident.reserved_bytes))}
          tone={over ? 'warning' : 'plain'}
          title={
            over
              ? trans.__('It uses more than it reserved.')
              : trans.__('In use, of what is reserved for it')
          }
        >
          {resident.measured_bytes === null ? (
            <Unknown
              why={
                props.unknownMemory ??
                trans.__('The device does not say what this job’s processes use.')
              }
            />
          ) : (
            bytes(resident.measured_bytes)
          )}
        </Figure>
        <Figure
          name={trans.__('Load')}
          detail={
            resident.predicted_utilization === null
              ? trans.__('not predicted')
              : trans.__('predicted %1', percentBetween(resident.predicted_utilization))
          }
        >
          {resident.measured_utilization === null ? (
            <Unknown
              why={trans.__('The device does not say how much of the load is this job’s.')}
            />
          ) : (
            percent(resident.measured_utilization)
          )}
        </Figure>
        <Figure
          name={trans.__('Slowdown')}
          detail={bound === null ? undefined : trans.__('bound %1', times(bound))}
          tone={overBound ? 'warning' : 'plain'}
          title={
            resident.slowdown === null
              ? undefined
              : trans.__('Predicted %1', timesBetween(resident.slowdown))
          }
        >
          {resident.measured_slowdown !== null ? (
            times(resident.measured_slowdown)
          ) : resident.slowdown !== null ? (
            <span className="horus-Predicted">
              {trans.__('~%1', times(resident.slowdown.p50))}
              <span className="horus-Hidden">{trans.__('predicted')}</span>
            </span>
          ) : (
            <Unknown why={trans.__('It was neither predicted nor measured.')} />
          )}
        </Figure>
      </dl>
      {left !== null && <p className="horus-Quiet">{trans.__('About %1 left', duration(left))}</p>}
    </li>
  );
}

/** Who runs it, from which notebook. */
export function Whose(props: {
  readonly owner: string;
  readonly notebook: string;
}): React.JSX.Element {
  return (
    <span className="horus-Whose" title={props.notebook || undefined}>
      {props.owner}
      {props.notebook !== '' && <> · {fileName(props.notebook)}</>}
    </span>
  );
}

/** A job's state as one word, with what it means. */
export function StateWord(props: { readonly state: Job['state'] }): React.JSX.Element {
  const trans = useWords();
  const [word, meaning, tone] = describe(props.state, trans);
  return <Badge text={word} title={meaning} tone={tone} />;
}

function describe(
  state: Job['state'],
  trans: ReturnType<typeof useWords>
): readonly [string, string, 'plain' | 'strong' | 'warning'] {
  switch (state) {
    case 'queued':
      return [trans.__('waiting'), trans.__('It waits in the queue.'), 'plain'];
    case 'granted':
      return [trans.__('granted'), trans.__('It has its slot and is about to start.'), 'strong'];
    case 'running':
      return [trans.__('running'), trans.__('It trains.'), 'strong'];
    case 'suspect':
      return [
        trans.__('out of contact'),
        trans.__('It has not been heard of for a while; its slot is kept.'),
        'warning'
      ];
    case 'fenced':
      return [
        trans.__('ending'),
        trans.__('Its slot is free once its processes are proven gone.'),
        'warning'
      ];
    case 'done':
      return [trans.__('done'), trans.__('It ended well.'), 'plain'];
    case 'failed':
      return [trans.__('failed'), trans.__('It ended with an error.'), 'warning'];
    case 'cancelled':
      return [trans.__('cancelled'), trans.__('It was cancelled.'), 'plain'];
    case 'rejected':
      return [trans.__('rejected'), trans.__('No device could ever hold it.'), 'warning'];
    case 'lost':
      return [trans.__('lost'), trans.__('Its process went without a word.'), 'warning'];
  }
}
