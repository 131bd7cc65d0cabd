/** A device's memory as one bar: who holds what, what is really in use, what is left. */

import * as React from 'react';

import { useWords } from './context';
import { bytes } from './format';
import { memoryShares } from './memory';
import type { DeviceState } from './records';
import { COLOURS } from './state';
import { Unknown, whyUnknown } from './value';

/** The class that gives a resident its colour. */
export function colourClass(colour: number | undefined): string {
  return `horus-colour-${(colour ?? 0) % COLOURS}`;
}

export function MemoryBar(props: {
  readonly state: DeviceState;
  readonly colours: ReadonlyMap<string, number>;
}): React.JSX.Element {
  const trans = useWords();
  const { device, reading, residents, unmanaged_bytes: unmanaged } = props.state;
  const shares = memoryShares(props.state);
  const used = reading?.memory_used_bytes ?? null;
  const spoken = trans.__(
    'Memory: %1 in use, %2 reserved by residents, %3 unmanaged, %4 margin, %5 free of %6',
    bytes(used),
    bytes(props.state.reserved_bytes),
    bytes(unmanaged),
    bytes(device.margin_bytes),
    bytes(shares.freeBytes),
    bytes(device.capacity_bytes)
  );
  const width = (fraction: number) => ({ width: `${(fraction * 100).toFixed(3)}%` });
  return (
    <div className="horus-Memory">
      <div className="horus-Row">
        <span>{trans.__('Memory')}</span>
        <span>
          {used === null ? (
            <Unknown why={whyUnknown(reading, 'memory_used_bytes', 'memory', 'device')} />
          ) : (
            <strong>{bytes(used)}</strong>
          )}{' '}
          {trans.__('of %1', bytes(device.capacity_bytes))}
        </span>
      </div>
      <div className="horus-Memory-bar" role="img" aria-label={spoken}>
        {shares.residents.map(({ resident, charged, measured }) => (
          <div
            key={resident.job_id}
            className={`horus-Memory-resident ${colourClass(props.colours.get(resident.job_id))}`}
            style={width(charged)}
            title={trans.__(
              '%1: %2 reserved, %3 measured',
              resident.name,
              bytes(resident.reserved_bytes),
              bytes(resident.measured_bytes)
            )}
          >
            {measured !== null && (
              <div
                className="horus-Memory-measured"
                style={width(charged > 0 ? Math.min(1, measured / charged) : 0)}
              />
            )}
          </div>
        ))}
        {shares.unmanaged !== null && shares.unmanaged > 0 && (
          <div
            className="horus-Memory-unmanaged"
            style={width(shares.unmanaged)}
            title={trans.__('Unmanaged: %1 that Horus did not grant', bytes(unmanaged))}
          />
        )}
        <div className="horus-Memory-free" style={width(shares.free)} />
        <div
          className="horus-Memory-margin"
          style={width(shares.margin)}
          title={trans.__('Margin: %1 that is never granted', bytes(device.margin_bytes))}
        />
      </div>
      <ul className="horus-Legend">
        {residents.length > 0 && (
          <li>
            <span className="horus-Swatch horus-Swatch-reserved" />
            {trans.__('Reserved %1', bytes(props.state.reserved_bytes))}
          </li>
        )}
        <li>
          <span className="horus-Swatch horus-Swatch-unmanaged" />
          {trans.__('Unmanaged')}{' '}
          {unmanaged === null ? (
            <Unknown
              why={whyUnknown(reading, 'processes', 'memory_used_bytes', 'memory', 'device')}
            />
          ) : (
            bytes(unmanaged)
          )}
        </li>
        <li>
          <span className="horus-Swatch horus-Swatch-free" />
          {trans.__('Free')}{' '}
          {shares.freeBytes === null ? (
            <Unknown why={trans.__('It is what unmanaged use leaves.')} />
          ) : (
            bytes(shares.freeBytes)
          )}
        </li>
        <li>
          <span className="horus-Swatch horus-Swatch-margin" />
          {trans.__('Margin %1', bytes(device.margin_bytes))}
        </li>
      </ul>
    </div>
  );
}
