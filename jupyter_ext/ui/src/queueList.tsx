/** The queue: who waits, in which order, what for and how long. */

import * as React from 'react';

import { useWords } from './context';
import { Whose } from './deviceCard';
import { duration, durationBetween, reasonText } from './format';
import { waited } from './progress';
import type { Job } from './records';
import { Badge, Note } from './section';
import { Unknown } from './value';

export function QueueList(props: {
  readonly queue: readonly Job[];
  readonly isMine: (job: Job) => boolean;
  readonly now: number;
}): React.JSX.Element {
  const trans = useWords();
  if (props.queue.length === 0) {
    return (
      <Note title={trans.__('Nobody waits.')}>
        {trans.__('A run that fits a device now is granted at once.')}
      </Note>
    );
  }
  return (
    <ol className="horus-Queue" aria-label={trans.__('Queue')}>
      {props.queue.map(job => (
        <QueueRow key={job.id} job={job} mine={props.isMine(job)} now={props.now} />
      ))}
    </ol>
  );
}

function QueueRow(props: {
  readonly job: Job;
  readonly mine: boolean;
  readonly now: number;
}): React.JSX.Element {
  const trans = useWords();
  const { job } = props;
  const { constraints, devices } = job.request;
  const expected = job.reason?.expected_seconds ?? null;
  return (
    <li className={`horus-QueueRow ${props.mine ? 'horus-mod-mine' : ''}`} data-job={job.id}>
      <span className="horus-QueueRow-place" title={trans.__('Place in the queue')}>
        {job.reason?.position ?? '–'}
      </span>
      <div className="horus-QueueRow-main">
        <div className="horus-QueueRow-title">
          <span className="horus-Name" title={job.request.name}>
            {job.request.name}
          </span>
          {devices > 1 && (
            <Badge
              text={trans.__('%1 devices', devices)}
              title={trans.__('All of them, or none.')}
            />
          )}
          {constraints.exclusive && (
            <Badge text={trans.__('exclusive')} title={trans.__('It takes no neighbours.')} />
          )}
          {constraints.priority !== 0 && (
            <Badge text={trans.__('priority %1', constraints.priority)} />
          )}
        </div>
        <WaitSentence job={job} />
        <p className="horus-Quiet">
          <Whose owner={job.owner} notebook={job.request.notebook} />
          {' · '}
          {trans.__('waited %1', duration(waited(job, props.now)))}
          {' · '}
          {expected === null ? (
            <>
              {trans.__('expected:')}{' '}
              <Unknown why={trans.__('Nobody can say when the neighbours will end.')} />
            </>
          ) : (
            trans.__('expected in %1', durationBetween(expected))
          )}
        </p>
      </div>
    </li>
  );
}

/** Why a job waits, in the broker's words. */
export function WaitSentence(props: { readonly job: Job }): React.JSX.Element {
  const trans = useWords();
  const { reason } = props.job;
  return (
    <p className="horus-Sentence">
      {reason !== null && reason.sentence !== ''
        ? reasonText(reason.sentence)
        : trans.__('The reason comes with the next look at the queue.')}
    </p>
  );
}
