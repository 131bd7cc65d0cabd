/**
 * What every component may need: words in the reader's language, and the broker's time.
 */

import { createContext, useContext } from 'react';

import type { Job, StoryEntry } from './records';

/** The part of JupyterLab's translation bundle that is used. */
export interface Words {
  __(text: string, ...values: unknown[]): string;
  _n(one: string, many: string, count: number, ...values: unknown[]): string;
}

export const WordsContext = createContext<Words | null>(null);

/** The translation bundle of this panel. */
export function useWords(): Words {
  const words = useContext(WordsContext);
  if (words === null) {
    throw new Error('A WordsContext is needed around Horus components.');
  }
  return words;
}

/** What people can do from the panel. */
export interface Actions {
  /** Leave the queue, or ask a running job to stop. Rejects with why it could not. */
  readonly cancel: (job: Job) => Promise<void>;
  /** Open the job's notebook. */
  readonly openNotebook: (job: Job) => Promise<void>;
  /** What happened to a job, oldest first. */
  readonly story: (jobId: string) => Promise<readonly StoryEntry[]>;
  /** Try to connect now. */
  readonly retry: () => void;
}

export const ActionsContext = createContext<Actions | null>(null);

/** What the panel can do. */
export function useActions(): Actions {
  const actions = useContext(ActionsContext);
  if (actions === null) {
    throw new Error('An ActionsContext is needed around Horus components.');
  }
  return actions;
}
