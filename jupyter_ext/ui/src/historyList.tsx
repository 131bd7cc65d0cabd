/** Jobs that ended, newest first, and how well they had been predicted. */

import * as React from 'react';

import { verdict } from './comparison';
import { useWords } from './context';
import { StateWord, Whose } from './deviceCard';
import { bytes, bytesBetween, duration, moment, percent, times } from './format';
import { predictionOf, ran, waited } from './progress';
import type { History, Job } from './records';
import { Note } from './section';
import { Figure, Unknown } from './value';

export function HistoryList(props: {
  readonly history: History | null;
  readonly now: number;
}): React.JSX.Element {
  const trans = useWords();
  const { history } = props;
  if (history === null) {
    return <Note title={trans.__('Asking for the runs that ended…')} />;
  }
  if (history.jobs.length === 0) {
    return (
      <Note title={trans.__('No run has ended yet.')}>
        {trans.__('Each run is kept here with what was predicted and what was measured.')}
      </Note>
    );
  }
  return (
    <>
      <TrackRecordLine history={history} />
      <ul className="horus-History" aria-label={trans.__('Recent runs')}>
        {history.jobs.map(job => (
          <HistoryRow key={job.id} job={job} now={props.now} />
        ))}
      </ul>
    </>
  );
}

function TrackRecordLine(props: { readonly history: History }): React.JSX.Element | null {
  const trans = useWords();
  const { track_record: record } = props.history;
  if (record.runs === 0 || record.memory_coverage === null) {
    return null;
  }
  return (
    <p className="horus-Quiet horus-Track">
      {trans._n(
        'Memory was inside its prediction in %2 of %1 run',
        'Memory was inside its prediction in %2 of %1 runs',
        record.runs,
        record.runs,
        percent(record.memory_coverage)
      )}
      {record.memory_median_error !== null &&
        `; ${trans.__('median error %1', percent(record.memory_median_error))}`}
      .
    </p>
  );
}

function HistoryRow(props: { readonly job: Job; readonly now: number }): React.JSX.Element {
  const trans = useWords();
  const { job, now } = props;
  const predicted = predictionOf(job)?.memory_bytes ?? null;
  const measured = job.measured.memory_peak_bytes;
  const found = verdict(predicted, measured);
  const seconds = ran(job, now);
  return (
    <li className="horus-HistoryRow" data-job={job.id}>
      <div className="horus-HistoryRow-title">
        <StateWord state={job.state} />
        <span className="horus-Name" title={job.request.name}>
          {job.request.name}
        </span>
        <Whose owner={job.owner} notebook={job.request.notebook} />
        {job.ended_at !== null && (
          <time
            className="horus-HistoryRow-when"
            dateTime={new Date(job.ended_at * 1000).toISOString()}
          >
            {moment(job.ended_at, now)}
          </time>
        )}
      </div>
      {job.outcome !== '' && job.state !== 'done' && (
        <p className="horus-Sentence">{job.outcome}</p>
      )}
      <dl className="horus-Figures horus-Figures-four">
        <Figure name={trans.__('Waited')}>{duration(waited(job, now))}</Figure>
        <Figure name={trans.__('Ran')}>{seconds === null ? '–' : duration(seconds)}</Figure>
        <Figure
          name={trans.__('Memory')}
          tone={found === 'above' ? 'warning' : 'plain'}
          title={predicted === null ? undefined : trans.__('Predicted %1', bytesBetween(predicted))}
          detail={predicted === null ? undefined : trans.__('of %1', bytesBetween(predicted))}
        >
          {measured === null ? <Unknown /> : bytes(measured)}
        </Figure>
        <Figure name={trans.__('Slowdown')}>
          {job.measured.slowdown === null ? (
            <Unknown why={trans.__('It takes time both alone and with neighbours to tell.')} />
          ) : (
            times(job.measured.slowdown)
          )}
        </Figure>
      </dl>
    </li>
  );
}
