/** The JupyterLab plugin: puts store, panel, status item and commands together. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ILayoutRestorer } from '@jupyterlab/application';
import { Dialog, ICommandPalette, Notification, showDialog } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';
import type { ISettingRegistry as Settings } from '@jupyterlab/settingregistry';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import * as React from 'react';

import { ServerApi } from './api';
import type { Actions, Words } from './context';
import { horusIcon } from './icon';
import { notificationOf } from './notifications';
import type { Job } from './records';
import { StatusItem } from './statusItem';
import { BrokerStore } from './store';
import { HorusPanel, PANEL_ID } from './widget';

const PLUGIN_ID = 'horus-lab:plugin';
const SHOW_PANEL = 'horus-lab:show-panel';
/** Beside the running kernels. */
const PANEL_RANK = 210;

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description: 'Shared devices: who is on them, who waits and why, predicted beside measured.',
  autoStart: true,
  optional: [ICommandPalette, ILayoutRestorer, ISettingRegistry, IStatusBar, ITranslator],
  activate
};

export default plugin;

function activate(
  app: JupyterFrontEnd,
  palette: ICommandPalette | null,
  restorer: ILayoutRestorer | null,
  registry: Settings | null,
  statusBar: IStatusBar | null,
  translator: ITranslator | null
): void {
  const words = (translator ?? nullTranslator).load('horus_lab');
  const settings = app.serviceManager.serverSettings;
  const store = new BrokerStore({
    api: new ServerApi(settings),
    owner: PageConfig.getOption('horusOwner') || null,
    openSocket: url => new settings.WebSocket(url),
    isVisible: () => document.visibilityState === 'visible'
  });
  document.addEventListener('visibilitychange', () => store.update());
  window.addEventListener('online', () => store.retry());

  const panel = new HorusPanel(store, words, actionsOf(app, store, words));
  app.shell.add(panel, 'left', { rank: PANEL_RANK });
  restorer?.add(panel, PANEL_ID);

  const showPanel = () => app.shell.activateById(PANEL_ID);
  app.commands.addCommand(SHOW_PANEL, {
    label: words.__('Show panel'),
    caption: words.__('Devices, the queue and my jobs'),
    icon: horusIcon,
    execute: showPanel
  });
  palette?.addItem({ command: SHOW_PANEL, category: words.__('Horus') });

  let notify = true;
  store.onJobChange((before, now) => {
    const message = notify ? notificationOf(before, now, words) : null;
    if (message !== null) {
      Notification.emit(message.text, message.type, {
        autoClose: message.type === 'error' ? false : 8000,
        actions: [{ label: words.__('Show panel'), callback: showPanel }]
      });
    }
  });

  let statusItem: { dispose(): void } | null = null;
  let stopLooking: (() => void) | null = null;
  function status(wanted: boolean): void {
    if (statusBar === null || wanted === (statusItem !== null)) {
      return;
    }
    if (!wanted) {
      statusItem?.dispose();
      stopLooking?.();
      statusItem = stopLooking = null;
      return;
    }
    stopLooking = store.look();
    statusItem = statusBar.registerStatusItem('horus-lab:status', {
      align: 'left',
      rank: 40,
      item: ReactWidget.create(<StatusItem store={store} words={words} onClick={showPanel} />)
    });
  }

  void follow(registry, options => {
    status(options.statusItem);
    notify = options.notifications;
  });
}

interface Options {
  readonly statusItem: boolean;
  readonly notifications: boolean;
}

/** Tell the settings now and after each change; the defaults where there is no registry. */
async function follow(registry: Settings | null, tell: (options: Options) => void): Promise<void> {
  const settings = await registry?.load(PLUGIN_ID);
  const read = () =>
    tell({
      statusItem: settings?.get('statusItem').composite !== false,
      notifications: settings?.get('notifications').composite !== false
    });
  settings?.changed.connect(read);
  read();
}

function actionsOf(app: JupyterFrontEnd, store: BrokerStore, words: Words): Actions {
  return {
    async cancel(job: Job): Promise<void> {
      if (job.state === 'queued' || (await confirmed(job, words))) {
        await store.cancel(job.id);
      }
    },
    async openNotebook(job: Job): Promise<void> {
      const { kernel_id: kernel, notebook } = job.request;
      const sessions = [...app.serviceManager.sessions.running()];
      const session = sessions.find(each => each.kernel?.id === kernel);
      await app.commands.execute('docmanager:open', { path: session?.path ?? notebook });
    },
    story: jobId => store.story(jobId),
    retry: () => store.retry()
  };
}

async function confirmed(job: Job, words: Words): Promise<boolean> {
  const answer = await showDialog({
    title: words.__('Stop this run?'),
    body: words.__(
      '“%1” is asked to stop after its current batch. What it has trained since its last checkpoint is lost.',
      job.request.name
    ),
    buttons: [
      Dialog.cancelButton({ label: words.__('Keep running') }),
      Dialog.warnButton({ label: words.__('Stop the run') })
    ]
  });
  return answer.button.accept;
}
