/** A part of the panel that opens and closes, with its count. */

import * as React from 'react';

export function Section(props: {
  readonly title: string;
  readonly count?: number | undefined;
  readonly open?: boolean;
  readonly children: React.ReactNode;
}): React.JSX.Element {
  const [open, setOpen] = React.useState(props.open ?? true);
  const id = React.useId();
  return (
    <section className="horus-Section" aria-labelledby={`${id}-title`}>
      <h2 className="horus-Section-heading">
        <button
          type="button"
          id={`${id}-title`}
          className="horus-Section-toggle"
          aria-expanded={open}
          aria-controls={`${id}-body`}
          onClick={() => setOpen(!open)}
        >
          <Chevron open={open} />
          <span>{props.title}</span>
          {props.count !== undefined && <span className="horus-Section-count">{props.count}</span>}
        </button>
      </h2>
      <div id={`${id}-body`} className="horus-Section-body" hidden={!open}>
        {open && props.children}
      </div>
    </section>
  );
}

/** Points down where something is open. */
export function Chevron(props: { readonly open: boolean }): React.JSX.Element {
  return (
    <svg
      className={`horus-Chevron ${props.open ? 'horus-mod-open' : ''}`}
      viewBox="0 0 16 16"
      width="12"
      height="12"
      aria-hidden="true"
    >
      <path d="M6 3.5 10.5 8 6 12.5" fill="none" strokeWidth="1.6" />
    </svg>
  );
}

/** A short word beside a name. */
export function Badge(props: {
  readonly text: string;
  readonly title?: string | undefined;
  readonly tone?: 'plain' | 'strong' | 'warning';
}): React.JSX.Element {
  return (
    <span className={`horus-Badge horus-mod-${props.tone ?? 'plain'}`} title={props.title}>
      {props.text}
    </span>
  );
}

/** A sentence that stands where something would be. */
export function Note(props: {
  readonly title: string;
  readonly children?: React.ReactNode;
  readonly tone?: 'plain' | 'warning';
}): React.JSX.Element {
  return (
    <div
      className={`horus-Note horus-mod-${props.tone ?? 'plain'}`}
      role={props.tone === 'warning' ? 'alert' : undefined}
    >
      <p className="horus-Note-title">{props.title}</p>
      {props.children !== undefined && <p className="horus-Note-text">{props.children}</p>}
    </div>
  );
}
