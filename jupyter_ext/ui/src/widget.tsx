/** The panel as a JupyterLab widget: it hears the store while it is shown. */

import { ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import type { Actions, Words } from './context';
import { ActionsContext, WordsContext } from './context';
import { horusIcon } from './icon';
import { Panel } from './panel';
import type { BrokerStore } from './store';

export const PANEL_ID = 'horus-lab-panel';

const NO_SUBSCRIPTION = () => () => undefined;

export class HorusPanel extends ReactWidget {
  private stopLooking: (() => void) | null = null;

  constructor(
    private readonly store: BrokerStore,
    private readonly words: Words,
    private readonly actions: Actions
  ) {
    super();
    this.id = PANEL_ID;
    this.addClass('horus-Widget');
    this.title.icon = horusIcon;
    this.title.caption = words.__('Horus Lab: devices, queue and my jobs');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', words.__('Horus Lab'));
  }

  override dispose(): void {
    this.look(false);
    super.dispose();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.look(true);
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this.look(false);
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.look(this.isVisible);
  }

  protected override onBeforeDetach(message: Message): void {
    this.look(false);
    super.onBeforeDetach(message);
  }

  protected override render(): React.JSX.Element {
    return (
      <WordsContext.Provider value={this.words}>
        <ActionsContext.Provider value={this.actions}>
          <LivePanel store={this.store} shown={this.stopLooking !== null} />
        </ActionsContext.Provider>
      </WordsContext.Provider>
    );
  }

  private look(wanted: boolean): void {
    if (wanted === (this.stopLooking !== null)) {
      return;
    }
    if (wanted) {
      this.stopLooking = this.store.look();
    } else {
      this.stopLooking?.();
      this.stopLooking = null;
    }
    if (!this.isDisposed) {
      this.update();
    }
  }
}

function LivePanel(props: {
  readonly store: BrokerStore;
  readonly shown: boolean;
}): React.JSX.Element {
  const { store, shown } = props;
  const state = React.useSyncExternalStore(
    shown ? store.subscribe : NO_SUBSCRIPTION,
    () => store.state
  );
  return <Panel state={state} pageNow={Date.now() / 1000} />;
}
