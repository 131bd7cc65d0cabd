/** Numbers with their names, and what stands where a number is unknown. */

import * as React from 'react';

import { useWords } from './context';
import type { DeviceReading } from './records';

/** “unknown”, with the reason for whoever points at it or reads it aloud. */
export function Unknown(props: { readonly why?: string | undefined }): React.JSX.Element {
  const trans = useWords();
  const why = props.why ?? trans.__('Nobody has measured this yet.');
  return (
    <span className="horus-Unknown" title={why}>
      {trans.__('unknown')}
      <span className="horus-Hidden">{` (${why})`}</span>
    </span>
  );
}

/** Why a value is missing from a reading, under the first of these names that it tells of. */
export function whyUnknown(
  reading: DeviceReading | null,
  ...names: readonly string[]
): string | undefined {
  return names.map(name => reading?.unknown[name]).find(why => why !== undefined);
}

/** A small named number; `detail` stands beneath it. */
export function Figure(props: {
  readonly name: string;
  readonly children: React.ReactNode;
  readonly detail?: React.ReactNode;
  readonly title?: string | undefined;
  readonly tone?: 'plain' | 'warning';
}): React.JSX.Element {
  return (
    <div className={`horus-Figure horus-mod-${props.tone ?? 'plain'}`} title={props.title}>
      <dt className="horus-Figure-name">{props.name}</dt>
      <dd className="horus-Figure-value">{props.children}</dd>
      {props.detail !== undefined && <dd className="horus-Figure-detail">{props.detail}</dd>}
    </div>
  );
}
