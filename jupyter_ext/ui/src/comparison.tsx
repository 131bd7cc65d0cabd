/** Predicted beside measured, as one small picture: a band with its middle, and a dot. */

import * as React from 'react';

import { useWords } from './context';
import type { Basis, Interval } from './records';
import { Unknown } from './value';

/** Where a measured value lies: inside the interval, or on which side of it. */
export function verdict(
  predicted: Interval | null,
  measured: number | null
): 'inside' | 'above' | 'below' | null {
  if (predicted === null || measured === null) {
    return null;
  }
  return measured > predicted.p90 ? 'above' : measured < predicted.p10 ? 'below' : 'inside';
}

export function Comparison(props: {
  readonly name: string;
  readonly predicted: Interval | null;
  readonly measured: number | null;
  readonly write: (value: number) => string;
  readonly writeInterval: (interval: Interval) => string;
  readonly basis: Basis | null;
  /** Whether there could be a measurement by now. */
  readonly started: boolean;
  /** The scale's end where there is a natural one. */
  readonly most?: number;
}): React.JSX.Element {
  const trans = useWords();
  const { predicted, measured } = props;
  const end = Math.max(predicted?.p90 ?? 0, measured ?? 0) * 1.15 || (props.most ?? 1);
  const most = props.most === undefined ? end : Math.max(props.most, end / 1.15);
  const place = (value: number) => `${((value / most) * 100).toFixed(2)}%`;
  const found = verdict(predicted, measured);
  const words = {
    inside: trans.__('inside the prediction'),
    above: trans.__('above the prediction'),
    below: trans.__('below the prediction')
  };
  return (
    <div className="horus-Comparison" title={found === null ? undefined : words[found]}>
      <span className="horus-Comparison-name">{props.name}</span>
      <span className="horus-Comparison-picture" aria-hidden="true">
        {predicted !== null && (
          <>
            <span
              className="horus-Comparison-band"
              style={{
                insetInlineStart: place(predicted.p10),
                width: place(predicted.p90 - predicted.p10)
              }}
            />
            <span
              className="horus-Comparison-middle"
              style={{ insetInlineStart: place(predicted.p50) }}
            />
          </>
        )}
        {measured !== null && (
          <span
            className={`horus-Comparison-dot horus-mod-${found ?? 'inside'}`}
            style={{ insetInlineStart: place(measured) }}
          />
        )}
      </span>
      <span className="horus-Comparison-text">
        {props.started && (
          <span className="horus-Comparison-measured">
            {measured === null ? <Unknown /> : props.write(measured)}
          </span>
        )}
        <span className="horus-Comparison-predicted">
          {predicted === null
            ? trans.__('not predicted')
            : props.basis === 'declared'
              ? trans.__('declared %1', props.writeInterval(predicted))
              : trans.__('predicted %1', props.writeInterval(predicted))}
        </span>
      </span>
      {found !== null && <span className="horus-Hidden">{words[found]}</span>}
    </div>
  );
}
