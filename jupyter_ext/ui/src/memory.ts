/** A device's memory as shares of its bar. Pure. */

import type { DeviceState, Resident } from './records';

/** A resident's share: what is charged to it, and how much of that is in use. */
export interface ResidentShare {
  readonly resident: Resident;
  /** max(reserved, measured), as a fraction of the capacity. */
  readonly charged: number;
  /** Measured, as a fraction of the capacity; `null` where it is unknown. */
  readonly measured: number | null;
}

export interface MemoryShares {
  readonly residents: readonly ResidentShare[];
  /** Use that was not granted here; `null` where it is unknown. */
  readonly unmanaged: number | null;
  readonly margin: number;
  readonly free: number;
  /** Bytes that a new reservation could take; `null` while unmanaged use is unknown. */
  readonly freeBytes: number | null;
}

/** How the capacity is divided: the broker's own sum, so that the bar shows what it decides on. */
export function memoryShares(state: DeviceState): MemoryShares {
  const { capacity_bytes: capacity, margin_bytes: margin } = state.device;
  const fraction = (bytes: number) => (capacity > 0 ? bytes / capacity : 0);
  const charged = state.residents.map(each =>
    Math.max(each.reserved_bytes, each.measured_bytes ?? 0)
  );
  const total = charged.reduce((sum, bytes) => sum + bytes, 0);
  const rest = capacity - total - (state.unmanaged_bytes ?? 0) - margin;
  return {
    residents: state.residents.map((resident, index) => ({
      resident,
      charged: fraction(charged[index] ?? 0),
      measured: resident.measured_bytes === null ? null : fraction(resident.measured_bytes)
    })),
    unmanaged: state.unmanaged_bytes === null ? null : fraction(state.unmanaged_bytes),
    margin: fraction(margin),
    free: Math.max(0, fraction(rest)),
    freeBytes: state.unmanaged_bytes === null ? null : Math.max(0, rest)
  };
}
