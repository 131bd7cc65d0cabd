import { describe, expect, it } from 'vitest';

import {
  bytes,
  bytesBetween,
  duration,
  durationBetween,
  percent,
  percentBetween,
  reasonText,
  stepTime,
  times
} from '../src/format';
import { GIB, interval } from './records';

describe('a value that is unknown', () => {
  it('says so, and is never a zero', () => {
    for (const text of [bytes(null), percent(null), times(null), duration(null)]) {
      expect(text).toBe('unknown');
    }
    expect([bytesBetween(null), percentBetween(null), durationBetween(null)]).toEqual([
      'unknown',
      'unknown',
      'unknown'
    ]);
  });
});

describe('sizes', () => {
  it('are in GiB from one GiB on, in MiB below', () => {
    expect(bytes(12.5 * GIB)).toBe('12.5 GiB');
    expect(bytes(GIB)).toBe('1 GiB');
    expect(bytes(820 * 2 ** 20)).toBe('820 MiB');
    expect(bytes(0)).toBe('0');
    expect(bytes(4096)).toBe('< 1 MiB');
  });

  it('keep three digits', () => {
    expect(bytes(9.1786 * GIB)).toBe('9.18 GiB');
    expect(bytes(123.456 * GIB)).toBe('123 GiB');
  });

  it('as an interval share the larger end’s unit', () => {
    expect(bytesBetween(interval(0.5 * GIB, GIB, 2 * GIB))).toBe('0.5–2 GiB');
    expect(bytesBetween(interval(GIB, GIB, GIB))).toBe('1 GiB');
  });
});

describe('durations', () => {
  it('take the unit a person would', () => {
    expect(duration(45.4)).toBe('45 s');
    expect(duration(59.7)).toBe('1 min');
    expect(duration(12 * 60)).toBe('12 min');
    expect(duration(3599)).toBe('1 h');
    expect(duration(3 * 3600 + 20 * 60)).toBe('3 h 20 min');
    expect(duration(2 * 86400 + 4 * 3600)).toBe('2 d 4 h');
  });

  it('as an interval say a shared unit once', () => {
    expect(durationBetween(interval(12, 20, 25))).toBe('12–25 s');
    expect(durationBetween(interval(40, 90, 180))).toBe('40 s–3 min');
    expect(durationBetween(interval(540, 541, 542))).toBe('9 min');
  });
});

it('percentages are whole, and an interval of one value is that value', () => {
  expect(percent(0.426)).toBe('43 %');
  expect(percentBetween(interval(0.35, 0.4, 0.55))).toBe('35–55 %');
  expect(percentBetween(interval(0.4, 0.4, 0.4))).toBe('40 %');
});

it('a step’s time is in milliseconds below a second', () => {
  expect(stepTime(0.0032)).toBe('3.2 ms');
  expect(stepTime(1.4)).toBe('1.4 s');
});

describe('the reason for a wait', () => {
  it('reads as a sentence without what stands beside it', () => {
    expect(reasonText('waits: GPU 0 lacks 14.4 GiB; expected in 9–10 min')).toBe(
      'GPU 0 lacks 14.4 GiB.'
    );
  });

  it('stays as it is where it is worded otherwise', () => {
    expect(reasonText('Its placement was refused.')).toBe('Its placement was refused.');
  });
});
