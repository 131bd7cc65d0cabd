/**
 * Numbers, sizes and times for people. Every function takes what may be unknown and says so.
 */

import type { Interval } from './records';

export const UNKNOWN = 'unknown';

const GIB = 2 ** 30;
const MIB = 2 ** 20;
const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;

/** Three significant digits at most, without an exponent or trailing zeros. */
function compact(value: number): string {
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return String(Number(value.toFixed(digits)));
}

/** `12.5 GiB`, `820 MiB`, `0`. */
export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) {
    return UNKNOWN;
  }
  if (value >= GIB) {
    return `${compact(value / GIB)} GiB`;
  }
  if (value > 0 && value < MIB) {
    return '< 1 MiB';
  }
  return value === 0 ? '0' : `${compact(value / MIB)} MiB`;
}

/** `9.1–12 GiB`: both ends in the larger end's unit. */
export function bytesBetween(interval: Interval | null): string {
  if (interval === null) {
    return UNKNOWN;
  }
  const unit = interval.p90 >= GIB ? GIB : MIB;
  const name = unit === GIB ? 'GiB' : 'MiB';
  return `${between(compact(interval.p10 / unit), compact(interval.p90 / unit))} ${name}`;
}

/** `43 %` of a fraction. */
export function percent(value: number | null | undefined): string {
  return value === null || value === undefined ? UNKNOWN : `${Math.round(value * 100)} %`;
}

/** `35–55 %` of a fraction's interval. */
export function percentBetween(interval: Interval | null): string {
  if (interval === null) {
    return UNKNOWN;
  }
  return `${between(
    String(Math.round(interval.p10 * 100)),
    String(Math.round(interval.p90 * 100))
  )} %`;
}

/** `1.06×`. */
export function times(value: number | null | undefined): string {
  return value === null || value === undefined ? UNKNOWN : `${value.toFixed(2)}×`;
}

/** `1.02–1.10×`. */
export function timesBetween(interval: Interval | null): string {
  if (interval === null) {
    return UNKNOWN;
  }
  return `${between(interval.p10.toFixed(2), interval.p90.toFixed(2))}×`;
}

/** `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) {
    return UNKNOWN;
  }
  const whole = Math.max(0, Math.round(seconds));
  if (whole < MINUTE) {
    return `${whole} s`;
  }
  const minutes = Math.round(whole / MINUTE);
  if (minutes < 60) {
    return `${minutes} min`;
  }
  if (minutes < DAY / MINUTE) {
    return withRest(Math.floor(minutes / 60), 'h', minutes % 60, 'min');
  }
  return withRest(Math.floor(whole / DAY), 'd', Math.floor((whole % DAY) / HOUR), 'h');
}

/** `12–25 s`, `40 s–3 min`: when something is expected. */
export function durationBetween(interval: Interval | null): string {
  if (interval === null) {
    return UNKNOWN;
  }
  const low = duration(interval.p10);
  const high = duration(interval.p90);
  const lowUnit = low.slice(low.indexOf(' '));
  if (
    low !== high &&
    low.split(' ').length === 2 &&
    high.endsWith(lowUnit) &&
    high.split(' ').length === 2
  ) {
    return between(low.slice(0, low.indexOf(' ')), high);
  }
  return between(low, high);
}

/** Seconds a step, or its rate, whichever reads better: `3.2 ms`, `1.4 s`. */
export function stepTime(seconds: number | null): string {
  if (seconds === null) {
    return UNKNOWN;
  }
  return seconds < 1 ? `${compact(seconds * 1000)} ms` : `${compact(seconds)} s`;
}

/** The time of day, with the date where it is not today's. */
export function moment(at: number, now: number): string {
  const when = new Date(at * 1000);
  const today = new Date(now * 1000).toDateString() === when.toDateString();
  const time = when.toLocaleTimeString(undefined, {
    hour: '2-digit',
    minute: '2-digit',
    ...(today ? { second: '2-digit' } : {})
  });
  return today
    ? time
    : `${when.toLocaleDateString(undefined, { month: 'short', day: 'numeric' })}, ${time}`;
}

/**
 * The broker's reason without what stands beside it anyway: `waits: …; expected in 9 min` reads
 * as a sentence of its own. Any other text stays as it is.
 */
export function reasonText(sentence: string): string {
  const text = sentence.replace(/^waits: /, '').replace(/; expected in [^;]*$/, '');
  return text === ''
    ? ''
    : text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? '' : '.');
}

/** The last part of a path: what people call a notebook. */
export function fileName(path: string): string {
  return path.slice(path.lastIndexOf('/') + 1);
}

function between(low: string, high: string): string {
  return low === high ? low : `${low}–${high}`;
}

function withRest(whole: number, unit: string, rest: number, restUnit: string): string {
  return rest > 0 ? `${whole} ${unit} ${rest} ${restUnit}` : `${whole} ${unit}`;
}
