/** One job of mine: where it stands, what was predicted and measured, its story, its end. */

import * as React from 'react';

import { Comparison } from './comparison';
import { useActions, useWords } from './context';
import { StateWord } from './deviceCard';
import {
  bytes,
  bytesBetween,
  duration,
  durationBetween,
  fileName,
  moment,
  percent,
  percentBetween,
  stepTime,
  times
} from './format';
import { predictionOf, ran, secondsLeft, shareDone, waited } from './progress';
import { WaitSentence } from './queueList';
import type { Job, StoryEntry } from './records';
import { Chevron } from './section';

export function JobCard(props: {
  readonly job: Job;
  readonly deviceName: (uuid: string) => string;
  readonly now: number;
}): React.JSX.Element {
  const trans = useWords();
  const actions = useActions();
  const { job, now } = props;
  const [failure, setFailure] = React.useState<string | null>(null);
  const [asking, setAsking] = React.useState(false);
  const [open, setOpen] = React.useState(false);
  const id = React.useId();
  const prediction = predictionOf(job);
  const devices = (job.lease?.slots ?? []).map(slot => props.deviceName(slot.device_uuid));
  const done = shareDone(job);
  const left = secondsLeft(job);
  const waits = job.state === 'queued';

  const cancel = async () => {
    setAsking(true);
    setFailure(null);
    try {
      await actions.cancel(job);
    } catch (error) {
      setFailure(error instanceof Error ? error.message : String(error));
    } finally {
      setAsking(false);
    }
  };

  return (
    <li className="horus-Card horus-Job" aria-labelledby={id} data-job={job.id}>
      <header className="horus-Job-header">
        <StateWord state={job.state} />
        <h3 id={id} className="horus-Name" title={job.request.name}>
          {job.request.name}
        </h3>
        <button
          type="button"
          className="horus-Button"
          disabled={asking || job.cancel_requested || job.state === 'fenced'}
          onClick={() => void cancel()}
          aria-label={trans.__('Cancel %1', job.request.name)}
        >
          {job.cancel_requested ? trans.__('Stopping…') : trans.__('Cancel')}
        </button>
      </header>
      <p className="horus-Quiet">
        {waits
          ? trans.__(
              'Place %1 · waited %2',
              job.reason?.position ?? '–',
              duration(waited(job, now))
            )
          : trans.__('On %1 for %2', devices.join(', '), duration(ran(job, now)))}
        {waits && job.reason?.expected_seconds
          ? ` · ${trans.__('expected in %1', durationBetween(job.reason.expected_seconds))}`
          : ''}
        {left !== null ? ` · ${trans.__('about %1 left', duration(left))}` : ''}
        {job.request.notebook !== '' && (
          <>
            {' · '}
            <button
              type="button"
              className="horus-Link"
              title={trans.__('Open %1', job.request.notebook)}
              onClick={() => void actions.openNotebook(job)}
            >
              {fileName(job.request.notebook)}
            </button>
          </>
        )}
      </p>
      {waits && <WaitSentence job={job} />}
      {done !== null && !waits && (
        <div
          className="horus-Progress"
          role="progressbar"
          aria-label={trans.__('Steps of %1', job.request.name)}
          aria-valuemin={0}
          aria-valuemax={100}
          aria-valuenow={Math.round(done * 100)}
          title={trans.__('%1 of %2 steps', job.measured.steps, job.request.steps)}
        >
          <div style={{ width: `${done * 100}%` }} />
        </div>
      )}
      {failure !== null && (
        <p className="horus-Failure" role="alert">
          {failure}
        </p>
      )}
      <div className="horus-Comparisons">
        <Comparison
          name={trans.__('Memory')}
          started={!waits}
          basis={prediction?.basis ?? null}
          predicted={prediction?.memory_bytes ?? null}
          measured={job.measured.memory_peak_bytes}
          write={bytes}
          writeInterval={bytesBetween}
        />
        <Comparison
          name={trans.__('Load')}
          started={!waits}
          basis={prediction?.basis ?? null}
          predicted={prediction?.utilization ?? null}
          measured={job.measured.utilization_alone ?? job.measured.utilization}
          write={percent}
          writeInterval={percentBetween}
          most={1}
        />
      </div>
      <button
        type="button"
        className="horus-Disclosure"
        aria-expanded={open}
        onClick={() => setOpen(!open)}
      >
        <Chevron open={open} />
        {trans.__('Story')}
      </button>
      {open && (
        <>
          <p className="horus-Quiet">
            {prediction?.explanation}
            {job.measured.slowdown !== null &&
              ` ${trans.__('Measured slowdown %1.', times(job.measured.slowdown))}`}
            {job.measured.steps_per_second_alone !== null &&
              ` ${trans.__('A step alone took %1.', stepTime(1 / job.measured.steps_per_second_alone))}`}
          </p>
          <Story job={job} now={now} />
        </>
      )}
    </li>
  );
}

/** What happened to a job, oldest first; asked for again whenever the job changes. */
export function Story(props: { readonly job: Job; readonly now: number }): React.JSX.Element {
  const trans = useWords();
  const { story } = useActions();
  const { id, revision, story: carried } = props.job;
  const [entries, setEntries] = React.useState<readonly StoryEntry[]>(carried);
  const [failure, setFailure] = React.useState<string | null>(null);
  React.useEffect(() => {
    let wanted = true;
    story(id).then(
      found => {
        if (wanted) {
          setEntries(found);
          setFailure(null);
        }
      },
      (error: unknown) => {
        if (wanted) {
          setFailure(error instanceof Error ? error.message : String(error));
        }
      }
    );
    return () => {
      wanted = false;
    };
  }, [id, revision, story]);
  return (
    <>
      {failure !== null && (
        <p className="horus-Failure" role="alert">
          {failure}
        </p>
      )}
      <ol className="horus-Story" aria-label={trans.__('Story')}>
        {entries.map((entry, index) => (
          <li key={entry.event_id || index}>
            <time dateTime={new Date(entry.at * 1000).toISOString()}>
              {moment(entry.at, props.now)}
            </time>
            <span>
              {entry.from_state !== entry.to_state && <StateWord state={entry.to_state} />}{' '}
              {entry.why || entry.event}
            </span>
          </li>
        ))}
      </ol>
    </>
  );
}
