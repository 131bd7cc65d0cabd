/** A device's utilization over the last minutes. */

import * as React from 'react';

import { useWords } from './context';
import { duration, percent } from './format';
import type { UsePoint } from './state';
import { USE_SECONDS } from './state';

const WIDTH = 300;
const HEIGHT = 36;
const BINS = 150;
const SHORTEST_SECONDS = 120;
/** A pause longer than this is drawn as a gap. */
const GAP_SECONDS = 12;

/** A run of neighbouring points: x from 0 to 1, the lowest and highest of what fell together. */
type Run = readonly { readonly x: number; readonly y: number }[];

/** The time that the picture spans: what is known, two minutes at least. */
export function span(points: readonly UsePoint[]): number {
  const first = points[0];
  const last = points.at(-1);
  const known = first && last ? last.at - first.at : 0;
  return Math.min(USE_SECONDS, Math.max(SHORTEST_SECONDS, known));
}

/** The known points, averaged into bins, cut where nothing is known. */
export function runs(points: readonly UsePoint[]): readonly Run[] {
  const last = points.at(-1);
  if (last === undefined) {
    return [];
  }
  const seconds = span(points);
  const begin = last.at - seconds;
  const bins = new Map<number, { sum: number; count: number; at: number }>();
  const cuts: number[] = [];
  for (const { at, utilization } of points) {
    if (utilization === null) {
      cuts.push(at);
      continue;
    }
    const bin = Math.round(((at - begin) / seconds) * BINS);
    const held = bins.get(bin);
    if (held === undefined) {
      bins.set(bin, { sum: utilization, count: 1, at });
    } else {
      held.sum += utilization;
      held.count += 1;
      held.at = at;
    }
  }
  const found: { x: number; y: number }[][] = [];
  let before: number | null = null;
  for (const [bin, { sum, count, at }] of bins) {
    const from = before;
    const cut =
      from === null ||
      at - from > Math.max(GAP_SECONDS, (3 * seconds) / BINS) ||
      cuts.some(when => when > from && when < at);
    if (cut) {
      found.push([]);
    }
    found.at(-1)?.push({ x: bin / BINS, y: Math.min(1, sum / count) });
    before = at;
  }
  return found;
}

export function Sparkline(props: { readonly points: readonly UsePoint[] }): React.JSX.Element {
  const trans = useWords();
  const known = props.points.map(point => point.utilization).filter(value => value !== null);
  const length = duration(span(props.points));
  const label =
    known.length === 0
      ? trans.__('Utilization over the last %1: unknown', length)
      : trans.__(
          'Utilization over the last %1: now %2, highest %3',
          length,
          percent(props.points.at(-1)?.utilization),
          percent(Math.max(...known))
        );
  return (
    <figure className="horus-Sparkline" title={label}>
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={label}
      >
        <line className="horus-Sparkline-half" x1="0" x2={WIDTH} y1={HEIGHT / 2} y2={HEIGHT / 2} />
        {runs(props.points).map((run, index) => {
          const line = run
            .map(
              ({ x, y }) => `${(x * WIDTH).toFixed(1)},${((1 - y) * (HEIGHT - 2) + 1).toFixed(1)}`
            )
            .join(' L');
          const first = (run[0]?.x ?? 0) * WIDTH;
          const last = (run.at(-1)?.x ?? 0) * WIDTH;
          return (
            <React.Fragment key={index}>
              <path
                className="horus-Sparkline-area"
                d={`M${first.toFixed(1)},${HEIGHT} L${line} L${last.toFixed(1)},${HEIGHT} Z`}
              />
              <path className="horus-Sparkline-line" d={`M${line}`} />
            </React.Fragment>
          );
        })}
      </svg>
      <figcaption aria-hidden="true">
        <span>{trans.__('%1 ago', length)}</span>
        <span>{trans.__('now')}</span>
      </figcaption>
    </figure>
  );
}
